"""Reading a model's answer with llama.cpp's parsers: reasoning, content and calls of tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyllmcancel.chat.order import short_id
from pyllmcancel.engine.compiled import compiled_module

if TYPE_CHECKING:
    from pyllmcancel._native import ChatParser
    from pyllmcancel.events import Delta


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning, which it writes for itself before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the text that answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The beginning of the `index`-th call of a tool; its arguments follow."""

    index: int
    name: str
    id: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A fragment of a call's arguments, which together are JSON."""

    index: int
    text: str


Part = Reasoning | Content | CallBegins | Arguments
# By the core's names.
PARTS: dict[str, Callable[..., Part]] = {"reasoning": Reasoning, "content": Content, "arguments": Arguments}


class AnswerParser:
    """The parser of one answer. Malformed parts come as text, or as arguments that are not JSON; nothing is an error.

    The `form` is the core's parser of a `ChatForm`, which answers share. Calls that the model gives no id have ids that
    depend on the `name` of the answer.
    """

    def __init__(self, form: ChatParser, name: str) -> None:
        self._parser = compiled_module().ChatParser(b"", form)
        self._name = name

    @property
    def n_calls(self) -> int:
        """The number of calls that have begun."""
        return int(self._parser.n_calls)

    def feed(self, delta: Delta) -> Iterator[Part]:
        """Iterate over the parts that a delta completes; the last one completes those that were held back, because they
        could have become something else.
        """
        found = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            found += self._parser.feed("", True)
        for kind, *fields in found:
            if kind == "call":
                index, name, call_id = fields
                yield CallBegins(index, name, call_id or short_id(f"{self._name} {index}"))
            else:
                yield PARTS[kind](*fields)
