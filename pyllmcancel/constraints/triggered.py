"""A constraint that sleeps until the answer itself begins what must be constrained: a call of a tool, say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyllmcancel.constraints.guidance import GuidedConstraint

if TYPE_CHECKING:
    import numpy as np
    from llguidance import LLTokenizer
    from numpy.typing import NDArray

    from pyllmcancel.constraints.guidance import Guide

BLANKS = b" \t\r\n"


class Anywhere:
    """Triggered by a text, wherever it stands."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def find(self, answer: bytes) -> int | None:
        """Where in the answer it begins; None if it is not there yet."""
        found = answer.find(self._text)
        return None if found < 0 else found

    def window(self, answer: bytes) -> int | None:
        """How many of the last bytes may be part of it; None if it cannot come any more."""
        return len(self._text) - 1


class AtStart:
    """Triggered by a text with which the answer begins; blanks do not count, in neither."""

    def __init__(self, text: bytes) -> None:
        self._text = _without_blanks(text)

    def find(self, answer: bytes) -> int | None:
        if not _without_blanks(answer).startswith(self._text):
            return None
        return len(answer) - len(answer.lstrip(BLANKS))

    def window(self, answer: bytes) -> int | None:
        return len(answer) if self._text.startswith(_without_blanks(answer)) else None


Trigger = Anywhere | AtStart


class TriggeredGuide:
    """Makes the constraints of a request's choices: free until the trigger, and from its first byte on guided.

    Parameters
    ----------
    guide
        What the answer must look like from the trigger on, the trigger included.
    piece
        The bytes of a token, those of control tokens too.
    """

    def __init__(self, guide: Guide, trigger: Trigger, piece: Callable[[int], bytes], tokenizer: LLTokenizer) -> None:
        self._guide = guide
        self._trigger = trigger
        self._piece = piece
        self._tokenizer = tokenizer

    def new(self) -> TriggeredConstraint:
        return TriggeredConstraint(self._guide.new(), self._trigger, self._piece, self._tokenizer)


class TriggeredConstraint:
    """One answer's state."""

    def __init__(
        self,
        constraint: GuidedConstraint,
        trigger: Trigger,
        piece: Callable[[int], bytes],
        tokenizer: LLTokenizer,
    ) -> None:
        self._constraint = constraint
        self._trigger = trigger
        self._piece = piece
        self._tokenizer = tokenizer
        self._asleep = True
        self._possible = True
        self._recent: list[tuple[int, bytes]] = []  # the tokens in which the trigger may have begun

    def mask(self) -> NDArray[np.uint32] | None:
        return None if self._asleep else self._constraint.mask()

    def accept(self, token: int) -> bool:
        if not self._asleep:
            return self._constraint.accept(token)
        return self._possible and self._watch(token)

    def _watch(self, token: int) -> bool:
        self._recent.append((token, self._piece(token)))
        text = b"".join(piece for _, piece in self._recent)
        start = self._trigger.find(text)
        if start is not None:
            return self._wake(start)
        window = self._trigger.window(text)
        if window is None:
            self._possible = False
            self._recent.clear()
        else:
            self._forget_before(len(text) - window)
        return False

    def _forget_before(self, position: int) -> None:
        while self._recent and position >= len(self._recent[0][1]):
            position -= len(self._recent.pop(0)[1])

    def _wake(self, start: int) -> bool:
        """Let the constraint see what it must have seen. What it does not allow was no call: the answer stays free."""
        tokens = self._tokens_from(start)
        if tokens is None or not self._constraint.allows(tokens):
            self._possible = not isinstance(self._trigger, AtStart)
            self._recent.clear()
            return False
        self._asleep = False
        self._recent.clear()
        complete = False
        for token in tokens:
            complete = self._constraint.accept(token)
        return complete

    def _tokens_from(self, start: int) -> list[int] | None:
        """The answer from a byte on, in tokens: its own, but for the one in whose middle the byte stands."""
        tokens: list[int] = []
        position = 0
        for token, piece in self._recent:
            end = position + len(piece)
            if position >= start:
                tokens.append(token)
            elif end > start:
                try:
                    rest = piece[start - position :].decode()
                except UnicodeDecodeError:
                    return None  # a token that ends in the middle of a character
                tokens += self._tokenizer.greedy_tokenize(rest)
            position = end
        return tokens


def _without_blanks(text: bytes) -> bytes:
    return text.translate(None, BLANKS)
