"""Server-sent events, from bytes as they come.

The format is that of the HTML standard, "Server-sent events". Lines end with LF, CR LF or CR, and with nothing else:
JSON that is not escaped to ASCII may contain the other line separators of Unicode.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_EVENT = 64 << 20  # bytes; the largest is a snapshot of everything
LONGEST_ID = 256  # the id is sent back in a header


class BrokenFeedError(ValueError):
    """The bytes are not a stream of events."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event: its id ("" if none was ever given), its name, its data."""

    id: str
    name: str
    data: str


class EventDecoder:
    """Turns bytes, cut anywhere, into events. For one connection; an incomplete event at its end is dropped.

    A field ``error``, which the standard ignores and some servers of language models send, is an event of this name. An
    event has `longest` bytes at most.
    """

    def __init__(self, longest: int = LONGEST_EVENT) -> None:
        self._longest = longest
        self._rest = bytearray()  # of the line so far
        self._after_cr = False  # an LF that comes next belongs to the same line end
        self._size = 0  # of the event so far
        self._id = ""
        self._name = ""
        self._data: list[str] = []

    def feed(self, data: bytes) -> list[ServerEvent]:
        """Return the events that end in these bytes; BrokenFeedError if one is too long."""
        *lines, rest = self._with_lf(data).split(b"\n")
        found = []
        for line in lines:
            self._rest += line
            event = self._line(bytes(self._rest))
            self._rest.clear()
            if event is not None:
                found.append(event)
        self._rest += rest
        self._check(len(self._rest))
        return found

    def _with_lf(self, data: bytes) -> bytes:
        """Return the same bytes with LF for each line end. An event ends with its CR: waiting for an LF would hold
        it back.
        """
        if not data:
            return data
        if self._after_cr:
            data = data.removeprefix(b"\n")
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _line(self, line: bytes) -> ServerEvent | None:
        if not line:
            return self._end()
        self._check(len(line))
        name, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id" if len(value) <= LONGEST_ID and value.isascii() and value.isprintable():
                self._id = value
            case "event":
                self._name = value
            case "data":
                self._size += len(line)
                self._data.append(value)
            case "error":  # at once: the empty line after it may never come
                return ServerEvent(self._id, name, value)
            case _:
                pass  # a comment, or a field of a later standard
        return None

    def _end(self) -> ServerEvent | None:
        event = ServerEvent(self._id, self._name or "message", "\n".join(self._data)) if self._data else None
        self._name, self._size = "", 0
        self._data.clear()
        return event

    def _check(self, more: int) -> None:
        if self._size + more > self._longest:
            raise BrokenFeedError(f"an event of more than {self._longest >> 20} MiB")
