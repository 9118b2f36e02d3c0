"""Drafts from a text: where the end of a sequence occurs in a text, the tokens after that place are likely to follow.

Answers repeat their prompts (edits, quotations, names) and themselves. A lookup needs no model, only a search in C.

Used by the engine thread only.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, overload

SIZE = array("i").itemsize
LENGTHS = (2, 3, 4, 8, 16)  # tokens of a sequence's end that are looked for
SHORTEST, LONGEST = LENGTHS[0], LENGTHS[-1]
MAX_SEARCHED = 32_768  # tokens: the search runs in each step, and the newest part of a text is the likeliest to recur
# A search finds bytes, also across the borders of tokens. It is given up after this number of such hits, for a text
# can be made to have one in each token.
MAX_MISALIGNED = 64


class TokenText:
    """The tokens of one text, which can be searched. Append-only.

    The tokens are stored as 32-bit integers in a `bytearray`, where `rfind` searches and slices are compared in C.
    """

    __slots__ = ("_bytes",)

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._bytes = bytearray(_packed(tokens))

    def extend(self, tokens: Iterable[int]) -> None:
        self._bytes += _packed(tokens)

    def __len__(self) -> int:
        return len(self._bytes) // SIZE

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        found = memoryview(self._bytes).cast("i")[place]
        return found if isinstance(found, int) else found.tolist()

    def begins_with(self, other: TokenText) -> bool:
        return self._bytes.startswith(other._bytes)

    def common_prefix(self, other: TokenText, begin: int = 0, other_begin: int = 0) -> int:
        """Return the number of equal tokens from `begin` on here and from `other_begin` on in `other`."""
        return n_common(self._bytes, other._bytes, begin, other_begin)

    def find_last(self, tokens: Sequence[int], end: int) -> int | None:
        """Return the index after the newest occurrence of `tokens` within the first `end` tokens, if there is one."""
        needle = _packed(tokens)
        begin = SIZE * max(0, end - MAX_SEARCHED)
        last = SIZE * end
        for _ in range(MAX_MISALIGNED):
            hit = self._bytes.rfind(needle, begin, last)
            if hit < 0:
                return None
            if hit % SIZE == 0:
                return (hit + len(needle)) // SIZE
            last = hit + len(needle) - 1
        return None


class Match(NamedTuple):
    """The tokens after a place of a text that agrees with the end of a sequence."""

    tokens: list[int]  # that may follow, at least one
    length: int  # of the tokens that agree, at most LONGEST: the more, the likelier the others follow
    position: int  # the text's index of the first token after the place


def continuation(
    suffix: Sequence[int],
    text: TokenText,
    most: int,
    *,
    before: int | None = None,
    shortest: int = SHORTEST,
) -> Match | None:
    """Return what follows, in `text`, the newest place where the longest end of `suffix` occurs, `most` tokens at most.

    `suffix` is a sequence, or its last LONGEST tokens. At least `shortest` tokens must agree; ends of LENGTHS tokens
    are tried. If `text` is the sequence itself, `before` is its length: its end does not match itself, and a text that
    repeats itself to its end is continued round and round.

    The newest place of a longer end is not after that of a shorter one, which is its end. So the ends are tried from
    the shortest on, each from the last one's place backwards. All searches together go through the text once, and one
    search is enough to find nothing.
    """
    end = len(text) - 1 if before is None else min(before, len(text)) - 1
    length, position = 0, end
    for tried in LENGTHS:
        if tried < shortest:
            continue
        found = text.find_last(suffix[len(suffix) - tried :], position) if tried <= len(suffix) else None
        if found is None:
            break
        length, position = tried, found
    if not length or most <= 0:
        return None
    tokens = text[position : position + most]
    if before is not None and len(tokens) < most:
        # The draft's own tokens are what the text goes on with.
        tokens = (tokens * (most // len(tokens) + 1))[:most]
    return Match(tokens, length, position)


def n_common(one: bytes | bytearray, other: bytes | bytearray, begin: int = 0, other_begin: int = 0) -> int:
    """Return the number of tokens in which two packed sequences agree, from these tokens on."""
    # The first `equal` tokens agree, and the first `different` ones do not. All that there are is tried first.
    equal, different = 0, min(len(one) // SIZE - begin, len(other) // SIZE - other_begin) + 1
    middle = different - 1
    # `startswith` is memcmp without a copy; neither slices nor comparisons of views are.
    with memoryview(other) as theirs:
        while different - equal > 1:
            part = theirs[SIZE * (other_begin + equal) : SIZE * (other_begin + middle)]
            if one.startswith(part, SIZE * (begin + equal)):
                equal = middle
            else:
                different = middle
            middle = (equal + different) // 2
    return equal


def _packed(tokens: Iterable[int]) -> bytes:
    return array("i", tokens).tobytes()
