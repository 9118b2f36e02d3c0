"""Carries out a plan: in a closed loop of so many clients, or with arrivals at their own times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from pyllmcancel.bench.plan import PlannedRequest

Make = Callable[[PlannedRequest, int], Coroutine[Any, Any, None]]
"""Makes one planned request, as the client of this number, and returns when its slot is free again."""


async def run_closed_loop(plan: Iterable[PlannedRequest], concurrency: int, make: Make) -> None:
    """`concurrency` clients, each of which takes the plan's next request when its last one has ended, or was cut."""
    remaining = iter(plan)

    async def work(lane: int) -> None:
        for request in remaining:
            await make(request, lane)

    async with asyncio.TaskGroup() as clients:
        for lane in range(concurrency):
            clients.create_task(work(lane), name=f"client {lane}")


async def run_arrivals(plan: Sequence[PlannedRequest], clients: int, make: Make) -> None:
    """Each request at its own time, however many are under way; the clients take turns."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        for request in plan:
            await asyncio.sleep(began + (request.arrives_at or 0.0) - loop.time())
            group.create_task(make(request, request.number % max(1, clients)), name=f"arrival {request.number}")
