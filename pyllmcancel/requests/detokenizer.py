"""Convert tokens to text, one at a time, without cutting multi-byte characters or showing stop strings.

Two kinds of text are held back: bytes that do not yet make a whole character, and characters that may begin a stop
string.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence


class Detokenizer:
    """Incremental text of one choice, of the bytes that `piece` returns for each token.

    Text from the first `stop` string on is dropped; `stopped_by` is the one that is complete. A line that is indented
    by fewer blanks than `min_indent` is dropped, with all that follows, and sets `outdented`; the first line, which the
    prompt began, is exempt. The answer begins with the bytes `skip`, which are not part of its text.
    """

    __slots__ = ("_decoder", "_held", "_indent", "_min_indent", "_piece", "_skip", "_stop", "outdented", "stopped_by")

    def __init__(
        self, piece: Callable[[int], bytes], stop: Sequence[str] = (), min_indent: int = 0, skip: bytes = b""
    ) -> None:
        self._piece = piece
        self._skip = skip
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._min_indent = min_indent
        self._indent: int | None = None  # blanks at the beginning of the present line, while it has nothing else
        self.stopped_by: str | None = None
        self.outdented = False

    def feed(self, token: int) -> str:
        """Return the text that is certain after this token; sets `stopped_by` when a stop string is complete."""
        piece = self._piece(token)
        if self._skip:
            piece, self._skip = piece[len(self._skip) :], self._skip[len(piece) :]
        return self._cut(self._release(self._decoder.decode(piece)))

    def flush(self) -> str:
        """Return the text that was held back, at the end of the answer; an unfinished character becomes U+FFFD."""
        text = self._release(self._decoder.decode(b"", final=True))
        if self.stopped_by is None:
            text += self._held
        self._held = ""
        return self._cut(text)

    def _cut(self, text: str) -> str:
        """Drop everything from the first outdented line on."""
        if self.outdented:
            return ""
        if not self._min_indent:
            return text
        for position, character in enumerate(text):
            if self._indent is not None and character in " \t":
                self._indent += 1
            elif self._indent is not None and self._indent < self._min_indent:
                self.outdented = True
                return text[:position]
            else:
                self._indent = 0 if character == "\n" else None
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
        """Return the length of the longest end of `text` that a stop string begins with."""
        longest = max(len(stop) for stop in self._stop) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stop):
                return length
        return 0
