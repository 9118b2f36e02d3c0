"""From tokens to text, a token at a time: multi-byte characters are never cut, stop strings never leak.

Two things hold text back: bytes that do not yet make a whole character, and characters that may turn out to be the
beginning of a stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """Incremental text of one choice.

    Parameters
    ----------
    piece
        The bytes of a token.
    stop
        Stop strings, none of them empty. Text from the first match on is dropped.
    """

    __slots__ = ("_decoder", "_held", "_piece", "_stop", "stopped_by")

    def __init__(self, piece: Callable[[int], bytes], stop: Sequence[str] = ()) -> None:
        self._piece = piece
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped_by: str | None = None

    def feed(self, token: int) -> str:
        """Text that is certain after this token; sets `stopped_by` when a stop string is complete."""
        return self._release(self._decoder.decode(self._piece(token)))

    def flush(self) -> str:
        """What was held back, at the end of the answer; an unfinished character becomes U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True))
        if self.stopped_by is None:
            text += self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        if not self._stop:
            return text
        first, match = min(((text.find(stop), stop) for stop in self._stop if stop in text), default=(-1, None))
        if match is not None:
            self.stopped_by = match
            self._held = ""
            return text[:first]
        keep = self._undecided(text)
        self._held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep]

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max(len(stop) for stop in self._stop) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
