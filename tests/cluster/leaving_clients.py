"""Clients that leave at random moments, or vanish, and what the replicas say of their requests afterwards.

A *ghost* is a request whose client has left, and that was computed to its end, or is still there. None can reach its
end by itself: each asks for more tokens than are computed while it is looked at.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_process import CHAT, COMPLETIONS, LIMIT, ServerProcess, fresh_id, long_prompt, post_bytes, until
from tests.support.leaving_client import ask_and_leave
from tests.support.network import Network, inside

# An owner's ended requests that a server still lists are 256 at least.
BATCH = 200
AT_ONCE = 24
LONGEST_STAY = 1.0  # seconds
CABLE_EVERY, N_VANISHING = 5, 48  # rounds, clients: more than have a slot
# The balancer finds a vanished client 20 s after its last sign of life, or 20 s after the first byte that is sent to it
# when its turn in the queue has come.
VANISHED_SECONDS = 60.0


@dataclass
class Seen:
    """The outcomes of all requests."""

    left: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)  # by phase and reason
    unseen: int = 0  # no replica had them: their clients had left before the request was whole
    ghosts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the balancer is, and the network between it and its clients, if that has cables to pull."""

    port: int
    host: str = "127.0.0.1"
    network: Network | None = None

    def on_client(self) -> AbstractContextManager[None]:
        """Have this thread on the clients' machine."""
        return nullcontext() if self.network is None else inside(self.network.client)


def request_of(chance: random.Random) -> tuple[str, bytes]:
    """Something to ask for, and its id."""
    request_id = fresh_id()
    path = chance.choice((COMPLETIONS, CHAT))
    more = (
        {"prompt": long_prompt(chance.randrange(500, 6_000))} if path == COMPLETIONS and chance.random() < 0.3 else {}
    )
    request = post_bytes(request_id, path, stream=chance.random() < 0.5, ignore_eos=True, **more)
    name = chance.choice(("", f"X-Session-Id: s{chance.randrange(40)}\r\n", f"X-Supersede: {request_id}\r\n"))
    return request_id, request.replace(b"X-Request-Id:", name.encode() + b"X-Request-Id:", 1)


async def leave(place: Place, chance: random.Random, left: Counter[str]) -> str:
    """Ask for something, stay for a while, and leave; the id."""
    request_id, request = request_of(chance)
    left[await ask_and_leave(place.host, place.port, request, chance, LONGEST_STAY)] += 1
    return request_id


async def leave_all(place: Place, n: int, chance: random.Random, left: Counter[str]) -> list[str]:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one() -> str:
        async with at_once:
            return await leave(place, chance, left)

    return await asyncio.gather(*(one() for _ in range(n)))


def vanish_all(place: Place, n: int, chance: random.Random, left: Counter[str], found: Callable[[], None]) -> list[str]:
    """Ask for `n` things, one after the other, and pull the cable; `found` is called before it is plugged in again."""
    assert place.network is not None
    ids, sockets = list[str](), list[socket.socket]()
    try:
        with place.on_client():
            for _ in range(n):
                request_id, request = request_of(chance)
                sockets.append(socket.create_connection((place.host, place.port)))
                sockets[-1].sendall(request)
                ids.append(request_id)
        time.sleep(chance.uniform(0, LONGEST_STAY))
        place.network.pull()
        left["cable"] += n
        found()
    finally:
        for each in sockets:
            each.close()
        place.network.plug_in()
    return ids


def abandon(place: Place, servers: Sequence[ServerProcess], n: int, seed: int, *, each: int = BATCH) -> Seen:
    """Have `n` clients leave, and look at every request, `each` at a time. Where there are cables, some vanish."""
    seen, chance = Seen(), random.Random(seed)
    n_rounds = 0

    def wait_idle(seconds: float = LIMIT) -> None:
        for server in servers:
            with suppress(TimeoutError):  # what is still there is found below
                server.wait_idle(seconds)

    while n > 0:
        n_rounds += 1
        if place.network is not None and n_rounds % CABLE_EVERY == 0:
            ids = vanish_all(place, min(n, N_VANISHING), chance, seen.left, lambda: wait_idle(VANISHED_SECONDS))
        else:
            with place.on_client():
                ids = asyncio.run(leave_all(place, min(n, each), chance, seen.left))
            wait_idle()
        n -= len(ids)
        look(ids, servers, seen)
    return seen


def listed_by(server: ServerProcess) -> list[dict[str, Any]]:
    """All its requests, if it can be when none is being stopped: to be seen in the midst of that is no fault."""
    listed: list[dict[str, Any]] = []

    def settled() -> bool:
        nonlocal listed
        listed = until(lambda: server.http.get("/v1/requests"), lambda a: a.status_code == 200).json()["data"]
        return all(one["status"] != "cancelling" for one in listed)

    with suppress(TimeoutError):
        until(settled, bool)
    return listed


def look(ids: Sequence[str], servers: Sequence[ServerProcess], seen: Seen) -> None:
    """Account for every one of them."""
    found = {}
    for server in servers:
        for entry in listed_by(server):
            if entry["id"] in found and entry["id"] in ids:
                seen.ghosts.append(f"{entry['id']} was at two replicas")
            found[entry["id"]] = entry
    for request_id in ids:
        entry = found.get(request_id)
        if entry is None:
            seen.unseen += 1
            continue
        reason = entry.get("cancel_reason")
        seen.ended[f"{entry['phase']}, {reason}"] += 1
        if entry["status"] != "cancelled" or reason != "disconnect":
            seen.ghosts.append(f"{request_id}: {entry['status']}, {reason}, {entry['completion_tokens']} tokens")
