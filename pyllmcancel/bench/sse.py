"""Server-sent events, from bytes as they come.

The format is the WHATWG's: lines end in LF, CR LF or CR, a line that begins with a colon is a comment, several ``data``
lines belong to one event. Servers differ in their line ends and send comments as pings, so a split at blank lines is
not enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event; `field` is ``data``, or ``error`` where a server sends its errors under that name."""

    field: str
    value: str


class EventParser:
    """Takes bytes in any pieces, gives whole events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Events that `data` completes."""
        self._rest += data
        # A CR at the very end may be half of a CR LF: it waits for the next piece.
        lines = self._rest.splitlines(keepends=True)
        self._rest = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        for line in lines:
            yield from self._take(line.rstrip(b"\r\n").decode(errors="replace"))

    def _take(self, line: str) -> Iterator[ServerEvent]:
        if not line:
            if self._data:
                yield ServerEvent("data", "\n".join(self._data))
                self._data.clear()
            return
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        elif name == "error":
            yield ServerEvent("error", value.removeprefix(" "))
