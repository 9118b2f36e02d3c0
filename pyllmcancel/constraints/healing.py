"""Token healing: an answer to a prompt that ends in the middle of a word.

A model that reads ``wrap_whi`` as the tokens ``wrap``, ``_`` and ``whi`` has hardly ever seen ``tespace`` follow: in
the texts that it learnt from, the word is another token. So the prompt gives the tokens of its last word back, and the
answer has to begin with their text. The tokens of the whole are then those that the model would have written itself. A
suggestion that somebody types along goes on as it was, whichever letter the prompt ends with.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyllmcancel._native import Model

MAX_GIVEN_BACK = 4  # tokens


class Healed(NamedTuple):
    """A prompt without its last tokens, and their text, with which the answer begins."""

    prompt: Sequence[int]
    text: bytes


def give_back(prompt: Sequence[int], model: Model, banned: Collection[int] = ()) -> Healed:
    """Take the last word off a prompt, or the blanks or the signs at its end.

    Where a gap is to be filled, it is the last word before the gap. One token of the prompt is kept, and control
    tokens and pictures, which have no text, are never taken. Nor are `banned` tokens: the answer could not spell
    their text.
    """
    tail = len(prompt) - _n_after_gap(prompt, model.special_tokens)
    healed = _give_back(prompt[:tail], lambda token: b"" if token < 0 or token in banned else model.piece(token))
    return Healed([*healed.prompt, *prompt[tail:]], healed.text)


def _n_after_gap(prompt: Sequence[int], special: Mapping[str, int]) -> int:
    """Return the number of tokens of a prompt's end that come after the gap: none if there is no gap."""
    middle, suffix = special.get("fim_mid"), special.get("fim_suf")
    if middle is None or suffix is None or prompt[-1] != middle:
        return 0
    return next((place for place, token in enumerate(reversed(prompt), 1) if token == suffix), 0)


def _give_back(prompt: Sequence[int], piece: Callable[[int], bytes]) -> Healed:
    text, end = b"", len(prompt)
    while end > 1 and len(prompt) - end < MAX_GIVEN_BACK:
        taken = piece(prompt[end - 1])
        if not taken:
            break
        text, end = taken + text, end - 1
        if not taken[:1].isalnum() and taken[0] < 0x80:  # the word begins here
            break
    return Healed(prompt[:end], text)


def n_along(tokens: Sequence[int], text: bytes, piece: Callable[[int], bytes]) -> int:
    """Return how many of `tokens` an answer may begin with that has to begin with `text`."""
    for n_tokens, token in enumerate(tokens):
        left = left_after(text, piece(token))
        if left is None:
            return n_tokens
        text = left
    return len(tokens)


def left_after(text: bytes, piece: bytes) -> bytes | None:
    """Return what is left of `text` after a token's `piece`; None if the token does not go along it."""
    if not text or piece.startswith(text):
        return b""
    return text[len(piece) :] if piece and text.startswith(piece) else None


class PieceIndex:
    """A vocabulary in the order of its pieces, in which those with a common beginning are neighbours."""

    def __init__(self, model: Model) -> None:
        self._pieces = model.pieces()
        order = sorted((token for token, piece in enumerate(self._pieces) if piece), key=self._pieces.__getitem__)
        self._order = np.array(order, np.int64)
        self._n_words = (len(self._pieces) + 31) // 32

    def along(self, text: bytes) -> NDArray[np.uint32]:
        """Return the tokens that go along `text`, one bit each: those that begin with it, or that it begins with."""
        bits = np.zeros(32 * self._n_words, np.uint8)
        bits[self._beginning_with(text)] = 1
        for length in range(1, len(text)):
            bits[self._equal_to(text[:length])] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    # Nothing here goes from token to token: half of a vocabulary may begin with a blank.
    def _beginning_with(self, text: bytes) -> NDArray[np.int64]:
        begin = bisect_left(self._order, text, key=self._pieces.__getitem__)
        end = bisect_right(self._order, text, begin, key=lambda token: self._pieces[token][: len(text)])
        return self._order[begin:end]

    def _equal_to(self, text: bytes) -> NDArray[np.int64]:
        begin = bisect_left(self._order, text, key=self._pieces.__getitem__)
        return self._order[begin : bisect_right(self._order, text, begin, key=self._pieces.__getitem__)]


class HealingConstraint:
    """The state of one answer, which has to begin with a text."""

    def __init__(self, index: PieceIndex, piece: Callable[[int], bytes], text: bytes, n_tokens: int = 0) -> None:
        self._index = index
        self._piece = piece
        self._left = text
        self.n_tokens = n_tokens  # that were accepted while they had to go along the text

    def mask(self) -> NDArray[np.uint32] | None:
        return self._index.along(self._left) if self._left else None

    def accept(self, token: int) -> bool:
        if self._left:
            self._left = left_after(self._left, self._piece(token)) or b""
            self.n_tokens += 1
        return False

    def fork(self) -> HealingConstraint:
        return HealingConstraint(self._index, self._piece, self._left, self.n_tokens)
