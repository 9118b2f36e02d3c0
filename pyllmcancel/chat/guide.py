"""The parts of a chat's answer: reasoning, which may have a budget, then a text that has a form, or calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from enum import Enum, auto
from typing import TYPE_CHECKING

from pyllmcancel.constraints.limits import bits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel._native import Model
    from pyllmcancel.chat.template import Thinking
    from pyllmcancel.constraints.guidance import Guide

MAX_CALL_HEAD = 256  # bytes


class State(Enum):
    """The part of its answer that a model is in."""

    BEGINNING = auto()  # of the answer, or of text that may stand before it
    REASONING = auto()
    ENDING = auto()  # the budget is spent: the end of the reasoning is written for the model
    TEXT = auto()
    CALLS = auto()  # of tools: the grammar that waited for them decides


class ChatGuide:
    """Makes the constraints of a request's choices.

    `thinking` are the texts around the model's reasoning, if it has any, `text` is the form of the text, if it has one,
    and `marks` are the beginnings of tools' calls. Reasoning of `budget` tokens is ended with `message`.
    """

    def __init__(
        self,
        model: Model,
        thinking: Thinking | None,
        text: Guide | None,
        *,
        marks: Sequence[str] = (),
        budget: int | None = None,
        message: str = "",
    ) -> None:
        self.model = model
        self.thinking = thinking
        self.text = text
        self.budget = budget
        self.calls = [(self.tokens(mark), State.CALLS) for mark in marks]
        # Some models turn from reasoning to a call without ending the reasoning.
        self.bare_calls = {mark.encode() for mark in marks}
        self.forced: list[int] = []
        self.openings = self.calls
        self.call_head: re.Pattern[bytes] | None = None
        if thinking is not None:
            if thinking.call_head:
                self.call_head = re.compile(thinking.call_head.encode() + rb"\Z")
            if not thinking.over:
                self.openings = [*self.calls, (self.tokens(thinking.start), State.REASONING)]
            self.forced = self.tokens(message + thinking.ends[0])

    def tokens(self, text: str) -> list[int]:
        return self.model.tokenize(text, add_special=False, parse_special=True)

    def new(self) -> ChatConstraint:
        return ChatConstraint(self, None if self.text is None else self.text.new())


class ChatConstraint:
    """The state of one answer."""

    def __init__(self, guide: ChatGuide, text: Guide | None) -> None:
        self._guide = guide
        self._text = text
        self._state = State.BEGINNING
        self._openings = guide.openings  # those that may still come
        self._n_done = 0  # tokens of an opening, or of the forced end, so far
        self._n_reasoned = 0  # tokens of all reasoning: some models reason again
        self._tail = b""  # the last bytes of the reasoning or the text, in which a mark may have begun
        if guide.thinking is not None and guide.thinking.begun:
            self._reason()

    def mask(self) -> NDArray[np.uint32] | None:
        match self._state:
            case State.BEGINNING if self._text is not None:
                opening = self._bits([tokens[self._n_done] for tokens, _ in self._openings])
                return opening if self._n_done > 0 else self._text.mask() | opening
            case State.ENDING:
                return self._bits([self._guide.forced[self._n_done]])
            case State.TEXT if self._text is not None:
                return self._text.mask()
            case _:
                return None

    def accept(self, token: int) -> bool:
        match self._state:
            case State.BEGINNING:
                return self._begin(token)
            case State.REASONING:
                self._follow(token)
            case State.ENDING:
                self._n_done += 1
                if self._n_done == len(self._guide.forced):
                    self._reasoned()
            case State.TEXT if self._text is not None:
                return self._text.accept(token)
            case State.TEXT:
                self._watch(token)
            case State.CALLS:
                pass
        return False

    def fork(self) -> ChatConstraint:
        fork = copy(self)  # all but the text's state are values that are replaced, never changed
        fork._text = None if self._text is None else self._text.fork()
        return fork

    def _begin(self, token: int) -> bool:
        going_on = [opening for opening in self._openings if opening[0][self._n_done] == token]
        if not going_on:
            begun = self._openings[0][0][: self._n_done] if self._openings else ()
            self._tail = b"".join(self._piece(one) for one in begun)
            self._state = State.TEXT
            return self.accept(token)
        self._openings = going_on
        self._n_done += 1
        for tokens, state in going_on:
            if len(tokens) == self._n_done:
                self._state = state
                if state is State.REASONING:
                    self._reason()
        return False

    def _reason(self) -> None:
        self._state, self._n_done, self._tail = State.REASONING, 0, b""
        self._check_budget()

    def _watch(self, token: int) -> None:
        """Watch for reasoning: some models write text before it, or reason again."""
        if self._guide.thinking is None:
            return
        start = self._guide.thinking.start.encode()
        self._tail = (self._tail + self._piece(token))[-len(start) - MAX_CALL_HEAD :]
        head = self._guide.call_head
        if self._tail.endswith(start) and not (head and head.search(self._tail.removesuffix(start))):
            self._reason()

    def _follow(self, token: int) -> None:
        assert self._guide.thinking is not None
        self._n_reasoned += 1
        text = self._tail + self._piece(token)
        ends = [end.encode() for end in self._guide.thinking.ends]
        for end in ends:
            _, found, rest = text.partition(end)
            if found and end in self._guide.bare_calls:
                self._state = State.CALLS
                return
            if found:
                self._reasoned(rest)
                return
        self._tail = text[-max(map(len, ends)) :]
        self._check_budget()

    def _reasoned(self, rest: bytes = b"") -> None:
        """Handle the end of reasoning, whose last token may contain the first bytes of the text after it."""
        self._state, self._n_done, self._openings = State.BEGINNING, 0, self._guide.calls
        self._tail = b""
        if self._text is None or not rest:
            return
        tokens = self._guide.tokens(rest.decode("utf-8", "ignore"))
        if self._text.allows(tokens):
            for token in tokens:
                self._text.accept(token)

    def _check_budget(self) -> None:
        budget = self._guide.budget
        if budget is not None and self._n_reasoned >= budget and _is_whole(self._tail):
            self._state, self._n_done = State.ENDING, 0

    def _piece(self, token: int) -> bytes:
        return self._guide.model.piece(token, special=True)

    def _bits(self, tokens: Sequence[int]) -> NDArray[np.uint32]:
        return bits(self._guide.model.n_vocab, tokens)


def _is_whole(text: bytes) -> bool:
    """Return whether a text does not end in the middle of a character; it may begin in one."""
    for length in range(1, min(4, len(text)) + 1):
        byte = text[-length]
        if byte & 0xC0 != 0x80:
            n_bytes = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return n_bytes <= length
    return True
