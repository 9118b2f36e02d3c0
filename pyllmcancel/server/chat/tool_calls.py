"""An incremental parser of tool calls in an answer's text: a name at once, its arguments in fragments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.constraints.tool_formats import ToolFormat


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A fragment of a call's arguments; all of them together are JSON."""

    index: int
    text: str


Part = Content | CallBegins | Arguments


class State(Enum):
    CONTENT = auto()  # before any call
    PLAIN = auto()  # content to the end: what could have begun a call did not
    HEAD = auto()  # a call has begun, and its name is not known
    ARGUMENTS = auto()
    AFTER = auto()  # between calls, or behind the last


class ToolCallParser:
    """One answer's text in, its parts out.

    What can still become a call is held back, and so are blanks before it; an answer that breaks off in the middle
    keeps what was told of it.
    """

    def __init__(self, tool_format: ToolFormat) -> None:
        self._format = tool_format
        self._head = tool_format.head_pattern()
        self._state = State.CONTENT
        self._held = ""
        self._object = ObjectEnd()
        self.n_calls = 0

    def feed(self, text: str) -> Iterator[Part]:
        self._held += text
        while True:
            before = self._state, self._held
            yield from self._advance()
            if (self._state, self._held) == before:
                return

    def finish(self) -> Iterator[Part]:
        """What was held back for nothing. Behind a call there is its form only, which the grammar saw to."""
        rest, self._held = self._held, ""
        if rest and self._state not in (State.ARGUMENTS, State.AFTER):
            yield Content(rest)

    def _advance(self) -> Iterator[Part]:
        match self._state:
            case State.CONTENT:
                yield from self._content()
            case State.PLAIN:
                text, self._held = self._held, ""
                if text:
                    yield Content(text)
            case State.HEAD | State.AFTER:
                yield from self._call()
            case State.ARGUMENTS:
                yield from self._arguments()

    def _content(self) -> Iterator[Part]:
        if not self._format.marks:
            self._state = self._begins_a_call()
            return
        mark = self._format.marks[0]
        before, found, _ = self._held.partition(mark)
        if found:
            self._state = State.HEAD
            self._held = self._held[len(before) :]
            text = before.rstrip()
        else:
            # Blanks too: before a call they are not worth being told.
            text = self._held[: len(self._held) - beginning_of(mark, self._held)].rstrip()
            self._held = self._held[len(text) :]
        if text:
            yield Content(text)

    def _begins_a_call(self) -> State:
        """Whether an answer in a format without marks is a call, which it would begin with."""
        wanted, seen = '{"name":', "".join(self._held.split())
        if seen.startswith(wanted):
            return State.HEAD
        return State.CONTENT if wanted.startswith(seen) else State.PLAIN

    def _call(self) -> Iterator[Part]:
        found = self._head.search(self._held)
        if found is None:
            return
        self._held = self._held[found.end() :]
        self._state = State.ARGUMENTS
        self._object = ObjectEnd()
        self.n_calls += 1
        yield CallBegins(self.n_calls - 1, found[1])

    def _arguments(self) -> Iterator[Part]:
        if not self._object.began:
            self._held = self._held.lstrip()
        end = self._object.feed(self._held)
        text = self._held if end is None else self._held[:end]
        self._held = self._held[len(text) :]
        if end is not None:
            self._state = State.AFTER
        if text:
            yield Arguments(self.n_calls - 1, text)


class ObjectEnd:
    """Finds where a JSON object ends, fed in fragments."""

    def __init__(self) -> None:
        self.began = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """The position after its last brace, if that is in `text`."""
        for position, character in enumerate(text):
            self.began = True
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return position + 1
        return None


def beginning_of(mark: str, text: str) -> int:
    """Length of the longest end of `text` that `mark` begins with."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)
