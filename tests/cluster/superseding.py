"""Sessions in which a newer request supersedes the older one, while replicas are added and taken away."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from tests.support.balancer import Balancer
from tests.support.http_process import COMPLETIONS, LIMIT, ServerProcess, fresh_id, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

AT_ONCE = 12  # sessions that are in the middle of it
LONGEST_WAIT = 2.0  # seconds between a session's two requests
FOREVER = {"prompt": "hello", "temperature": 0, "max_tokens": 30_000, "ignore_eos": True, "stream": True}


@dataclass
class Outcome:
    """The outcome of the sessions."""

    n_right: int = 0  # the newer one lived, the older one was superseded by it, and a cancel found the newer one
    wrong: list[str] = field(default_factory=list)
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)
    stops: list[float] = field(default_factory=list)  # seconds from a newer one's sending to its older one's last byte
    n_replicas: list[int] = field(default_factory=list)  # one after the other


class Stream:
    """An answer that is read as it comes."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer
        self.begun = asyncio.Event()  # a token has come, or the end
        self.ended = asyncio.Event()
        self.ended_at = float("inf")  # monotonic seconds
        self.text = ""

    async def read(self) -> None:
        try:
            with suppress(httpx.TransportError):
                async for piece in self._answer.aiter_text():
                    self.text = (self.text + piece)[-2_000:]
                    if "choices" in piece:
                        self.begun.set()
        finally:
            self.ended_at = time.monotonic()
            self.begun.set()
            self.ended.set()

    @property
    def code(self) -> str | None:
        """The code of the error in which it ended."""
        return next((code for code in ("superseded", "explicit", "disconnect") if f'"{code}"' in self.text), None)


@asynccontextmanager
async def asked(http: httpx.AsyncClient, request_id: str, session: str) -> AsyncIterator[Stream]:
    headers = {"X-Request-Id": request_id, "X-Session-Id": session, "X-Supersede": session}
    async with http.stream("POST", COMPLETIONS, json=FOREVER, headers=headers) as answer:
        stream = Stream(answer)
        reading = asyncio.create_task(stream.read())
        try:
            yield stream
        finally:
            reading.cancel()


async def one_session(http: httpx.AsyncClient, name: str, wait: float, outcome: Outcome) -> None:
    older, newer = fresh_id(), fresh_id()
    async with asyncio.timeout(4 * LIMIT), asked(http, older, name) as first:
        await asyncio.sleep(wait)
        sent_at = time.monotonic()
        async with asked(http, newer, name) as second:
            await second.begun.wait()
            lives = not second.ended.is_set()
            with suppress(TimeoutError):
                await asyncio.wait_for(first.ended.wait(), LIMIT)
            cancelled = await http.post(f"/v1/requests/{newer}/cancel")
            found = cancelled.status_code == 200 and cancelled.json()["outcome"] == "cancelled"
    outcome.stops.append(first.ended_at - sent_at)
    if lives and first.code == "superseded" and found:
        outcome.n_right += 1
    else:
        outcome.wrong.append(f"{name}: lives {lives}, older {first.code}, cancel {cancelled.status_code}")
    async with outcome.progress:
        outcome.progress.notify_all()


async def superseded(
    balancer: Balancer, servers: Sequence[ServerProcess], sizes: Sequence[int], n_sessions: int, seed: int
) -> Outcome:
    """Run sessions, and meanwhile have `sizes` replicas, one size after the other."""
    outcome, chance = Outcome(), random.Random(seed)
    names = iter(range(n_sessions))
    # A connection of its own for each: one that was kept may be closed by a reload just when the next request is sent.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{balancer.port}", timeout=None, limits=limits) as http:

        async def some() -> None:
            for number in names:
                await one_session(http, f"session {number}", chance.uniform(0, LONGEST_WAIT), outcome)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(some())
            tasks.create_task(resized(balancer, servers, sizes, outcome, n_sessions))
    return outcome


async def resized(
    balancer: Balancer, servers: Sequence[ServerProcess], sizes: Sequence[int], outcome: Outcome, n_sessions: int
) -> None:
    """The next size whenever as many sessions more are done as there are for each."""
    outcome.n_replicas.append(len(balancer.servers))
    for number, size in enumerate(sizes, 1):
        n_done = n_sessions * number // (len(sizes) + 1)
        async with outcome.progress:
            await outcome.progress.wait_for(lambda n=n_done: len(outcome.stops) >= n)
        for leaving in list(balancer.servers)[size:]:
            await asyncio.to_thread(drained, balancer, leaving)
        await asyncio.to_thread(balancer.reload, servers[:size])
        outcome.n_replicas.append(size)


def drained(balancer: Balancer, name: str) -> None:
    """It gets nothing new, and what it has ends."""
    balancer.tell(f"set server llm/{name} weight 0")
    until(lambda: balancer.servers[name].http.get("/health").json(), lambda seen: not seen["waiting"] + seen["running"])
    until(lambda: balancer.tell("show servers conn llm"), lambda told: in_use(told, name) == 0)


def in_use(told: str, name: str) -> int:
    """Connections of a server, of HAProxy's table of them."""
    header, *rows = (line.split() for line in told.splitlines() if line)
    columns = header[1:] if header[0] == "#" else [header[0].lstrip("#"), *header[1:]]
    row = next(row for row in rows if row[0] == f"llm/{name}")
    return int(row[columns.index("used_cur")])
