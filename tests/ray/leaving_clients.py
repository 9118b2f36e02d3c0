"""Clients that leave at random moments, and what the replicas and their step traces say of their requests afterwards.

A *ghost* is a request whose client has left, and that was computed to its end, is still there, or is in a step that
began long after its client had left. The packaged model is fast: a few are at their ends when their clients leave, or
within the moment in which that is noticed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.ray.cluster import RayCluster
from tests.ray.replica_requests import LONG
from tests.support.http_process import CHAT, COMPLETIONS, fresh_id, long_prompt, post_bytes, until
from tests.support.leaving_client import ask_and_leave

LIVE = ("waiting", "running", "cancelling")
# A replica lists 256 ended requests; the step traces are as short.
BATCH = 100
AT_ONCE = 32  # more than two replicas have slots
LONGEST_STAY = 0.5  # seconds
LATEST = 1.0  # seconds after a client's leaving in which a step of its request may begin: the machine may be busy


class Left(NamedTuple):
    """When, on the monotonic clock, which is the whole machine's, and by the calendar's."""

    id: str
    way: str
    at: float
    at_epoch: float


@dataclass
class Seen:
    """The outcomes of all requests."""

    left: Counter[str] = field(default_factory=Counter)
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)  # by phase and reason
    complete: int = 0  # when its client left, or so soon after that its last step began in time
    unseen: int = 0  # no replica had them: their clients had left before the request was whole
    latest_step: float = 0.0  # seconds after its client's leaving at which a step of a request began, the longest
    ghosts: list[str] = field(default_factory=list)


async def leave(port: int, chance: random.Random) -> Left:
    """Ask for something, stay for a while, and leave."""
    request_id = fresh_id()
    path = chance.choice((COMPLETIONS, CHAT))
    long = {"prompt": long_prompt(chance.randrange(300, 1_000)), "max_tokens": 1_000}
    more = long if path == COMPLETIONS and chance.random() < 0.4 else {}
    request = post_bytes(request_id, path, stream=chance.random() < 0.5, **LONG | more)
    way = await ask_and_leave("127.0.0.1", port, request, chance, LONGEST_STAY)
    return Left(request_id, way, time.monotonic(), time.time())


async def leave_all(port: int, n: int, chance: random.Random) -> list[Left]:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one() -> Left:
        async with at_once:
            return await leave(port, chance)

    return await asyncio.gather(*(one() for _ in range(n)))


def abandon(cluster: RayCluster, n: int, seed: int) -> Seen:
    """Have `n` clients leave, and look at every request."""
    seen, chance = Seen(), random.Random(seed)
    while n > 0:
        left = asyncio.run(leave_all(cluster.port, min(n, BATCH), chance))
        n -= len(left)
        with suppress(TimeoutError):  # what is still there is found below
            until(lambda: live(cluster), lambda ids: not ids)
        seen.left.update(one.way for one in left)
        look_at_requests(cluster, left, seen)
        look_at_steps(cluster, {one.id: one.at for one in left}, seen)
    return seen


def live(cluster: RayCluster) -> list[str]:
    """Return the live requests of all replicas, including cancelled ones until their computation has stopped."""
    entries = cluster.replicas[0].http.get("/v1/requests").json()["data"]
    return [one["id"] for one in entries if one["status"] in LIVE]


def look_at_requests(cluster: RayCluster, left: list[Left], seen: Seen) -> None:
    """Account for every one of them."""
    found = {entry["id"]: entry for entry in cluster.replicas[0].http.get("/v1/requests").json()["data"]}
    for one in left:
        entry = found.get(one.id)
        if entry is None:
            seen.unseen += 1
            continue
        reason = entry.get("cancel_reason")
        if entry["status"] == "finished" and entry["created"] + entry["seconds"] < one.at_epoch + LATEST:
            seen.complete += 1
            continue
        seen.ended[entry["phase"], reason] += 1
        if entry["status"] != "cancelled" or reason != "disconnect":
            seen.ghosts.append(f"{one.id}: {entry['status']}, {reason}, {entry['completion_tokens']} tokens")


def look_at_steps(cluster: RayCluster, left_at: dict[str, float], seen: Seen) -> None:
    """No step of any of them began long after its client had left."""
    for replica in cluster.replicas:
        for step in replica.http.get("/v1/steps?last=1024").json()["data"]:
            for part in step["sequences"]:
                late = step["started_at"] - left_at.get(part["request"], step["started_at"])
                seen.latest_step = max(seen.latest_step, late)
                if late > LATEST:
                    seen.ghosts.append(f"{part['request']}: a step began {late:.3f} s after its client had left")
