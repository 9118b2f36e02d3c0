"""The server's log by request: what its engine wrote of each, with the time at which the line came."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

# The engine's own lines; the server's access log has another name.
ENGINE_LINE = re.compile(
    r"pyllmcancel\.engine: request (?P<id>\S+) (?P<verb>added|cancelled|finished|failed)"
    r"(?: \((?P<reason>[\w ]+?)(?: by [^)]+)?\))?(?: in (?P<phase>\w+))?"
)
LOAD = re.compile(r"waiting (\d+), running (\d+)$")
ENDINGS = ("cancelled", "finished", "failed")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line about a request.

    Attributes
    ----------
    at
        When it was read, on the monotonic clock.
    reason
        Of a cancel, or of a proper end.
    load
        Requests waiting and running, if the line says so.
    """

    at: float
    text: str
    verb: str
    reason: str | None
    phase: str | None
    load: tuple[int, int] | None


class ServerLog:
    """Lines by request; `take` is called in the event loop for each line of the log."""

    def __init__(self) -> None:
        self.by_request: defaultdict[str, list[LogLine]] = defaultdict(list)
        self.others: list[str] = []
        self._waiters: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)

    def take(self, text: str, at: float) -> None:
        found = ENGINE_LINE.search(text)
        if found is None:
            self.others.append(text)
            return
        load = LOAD.search(text)
        counts = (int(load[1]), int(load[2])) if load is not None else None
        self.by_request[found["id"]].append(LogLine(at, text, found["verb"], found["reason"], found["phase"], counts))
        for waiter in self._waiters.pop(found["id"], ()):
            if not waiter.done():
                waiter.set_result(None)

    async def wait_for(self, request_id: str, *verbs: str, seconds: float = 60.0) -> LogLine:
        """The first line that says one of `verbs` of the request; TimeoutError if none comes."""
        async with asyncio.timeout(seconds):
            while True:
                for line in self.by_request[request_id]:
                    if line.verb in verbs:
                        return line
                waiter = asyncio.get_running_loop().create_future()
                self._waiters[request_id].append(waiter)
                await waiter

    async def ending(self, request_id: str) -> LogLine:
        return await self.wait_for(request_id, *ENDINGS)

    def endings(self, request_id: str) -> list[LogLine]:
        """All endings of a request: there must be one."""
        return [line for line in self.by_request[request_id] if line.verb in ENDINGS]

    def loads(self, request_ids: Iterable[str]) -> list[int]:
        """Waiting + running, as every line about these requests has it."""
        lines = (line for request_id in request_ids for line in self.by_request[request_id])
        return [sum(line.load) for line in lines if line.load is not None]

    def complaints(self) -> list[str]:
        """Lines that no server in good health writes."""
        return [text for text in self.others if re.search(r" (WARNING|ERROR|CRITICAL) |Traceback", text)]
