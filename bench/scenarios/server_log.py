"""The server's log by request: what its engine wrote of each, with the time at which the line came."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

# The engine's own lines; the server's access log has another name.
ENGINE_LINE = re.compile(
    r"pyllmcancel\.engine: request (?P<id>\S+) (?P<verb>added|cancelled|finished|failed)"
    r"(?: \((?P<reason>[\w ]+?)(?: by [^)]+)?\))?(?: in (?P<phase>\w+))?"
)
ENDINGS = ("cancelled", "finished", "failed")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line about a request."""

    at: float  # when it was read, on the monotonic clock
    text: str
    verb: str
    reason: str | None  # of a cancel, or of a proper end
    phase: str | None


class ServerLog:
    """Lines by request; `take` is called in the event loop for each line of the log."""

    def __init__(self) -> None:
        self.by_request: defaultdict[str, list[LogLine]] = defaultdict(list)
        self.others: list[str] = []

    def listener(self) -> Callable[[str, float], None]:
        """Return a function for any thread, which has each line taken in the event loop that runs now."""
        loop = asyncio.get_running_loop()

        def listen(text: str, at: float) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.take, text, at)

        return listen

    def take(self, text: str, at: float) -> None:
        found = ENGINE_LINE.search(text)
        if found is None:
            self.others.append(text)
            return
        self.by_request[found["id"]].append(LogLine(at, text, found["verb"], found["reason"], found["phase"]))

    def endings(self, request_id: str) -> list[LogLine]:
        """All endings of a request: there must be one."""
        return [line for line in self.by_request[request_id] if line.verb in ENDINGS]

    def complaints(self) -> list[str]:
        """Lines that no server in good health writes."""
        return [text for text in self.others if re.search(r" (WARNING|ERROR|CRITICAL) |Traceback", text)]
