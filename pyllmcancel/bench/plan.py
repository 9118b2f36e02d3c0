"""Plans of requests (their times and lengths, and which ones are cut), and two loops that carry them out.

A plan is the same for the same seed. The semantics are those of AIPerf's request cancellation: each request is chosen
independently, by its number and the seed alone, so 10 % of 50 need not be 5. Neither the server's speed nor the delay,
the concurrency or the number of warm-up requests changes the choice. A request that is chosen at 10 % is also chosen at
30 %, which makes a sweep smooth.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens, normally distributed, at least 1."""

    mean: float
    stddev: float = 0.0

    def draw(self, chance: random.Random) -> int:
        # Drawn even if nothing spreads, so that one option does not shift another's numbers.
        return max(1, round(self.mean + self.stddev * chance.gauss(0.0, 1.0)))


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds from "fully sent" to the hang-up, evenly distributed; 0: at once."""

    shortest: float
    longest: float

    def draw(self, chance: random.Random) -> float:
        return self.shortest + (self.longest - self.shortest) * chance.random()


AT_ONCE = Delay(0.0, 0.0)
PROMPT, OUTPUT = Length(200.0), Length(60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options that a plan is made from.

    Attributes
    ----------
    percent
        The probability that a request is cut, 0 to 100. Warm-up requests are never cut.
    rate
        Arrivals per second, in a Poisson process; None: a closed loop, whose next request starts when one has ended.
    """

    requests: int
    warmup: int = 0
    percent: float = 0.0
    delay: Delay = AT_ONCE
    prompt: Length = PROMPT
    output: Length = OUTPUT
    rate: float | None = None
    seed: int = 42


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of a plan.

    Attributes
    ----------
    number
        The number, counted from 0; warm-up requests are counted from 0 as well.
    arrives_at
        The arrival in seconds from the start of the plan; None in a closed loop.
    cut_after
        Seconds from "fully sent" to the hang-up; None if the request was not chosen.
    """

    number: int
    prompt_tokens: int
    max_tokens: int
    arrives_at: float | None
    cut_after: float | None
    warmup: bool = False


def make_plan(options: PlanOptions) -> tuple[PlannedRequest, ...]:
    """Return the requests that are measured."""
    chosen, delays = _stream(options, "chosen"), _stream(options, "delay")
    prompts, outputs, gaps = _stream(options, "prompt"), _stream(options, "output"), _stream(options, "gap")
    now, plan = 0.0, []
    for number in range(options.requests):
        now += gaps.expovariate(1.0) / options.rate if options.rate is not None else 0.0
        cut = chosen.random() < options.percent / 100.0
        delay = options.delay.draw(delays)
        lengths = options.prompt.draw(prompts), options.output.draw(outputs)
        arrives_at = now if options.rate is not None else None
        plan.append(PlannedRequest(number, *lengths, arrives_at, delay if cut else None))
    return tuple(plan)


def make_warmup(options: PlanOptions) -> tuple[PlannedRequest, ...]:
    """Return the requests that come before, in a closed loop. They are not measured, and none is cut."""
    prompts, outputs = _stream(options, "warm-up prompt"), _stream(options, "warm-up output")
    return tuple(
        PlannedRequest(number, options.prompt.draw(prompts), options.output.draw(outputs), None, None, warmup=True)
        for number in range(options.warmup)
    )


def _stream(options: PlanOptions, name: str) -> random.Random:
    """Return a random stream for each kind of draw, so that draws do not influence each other."""
    return random.Random(f"{options.seed}: {name}")


Make = Callable[[PlannedRequest, int], Coroutine[Any, Any, None]]
"""Makes one planned request, as the client of this number, and returns when its slot is free again."""


async def run_closed_loop(plan: Iterable[PlannedRequest], concurrency: int, make: Make) -> None:
    """Run `concurrency` clients, each of which takes the plan's next request when its last one has ended, or was
    cut.
    """
    remaining = iter(plan)

    async def work(lane: int) -> None:
        for request in remaining:
            await make(request, lane)

    async with asyncio.TaskGroup() as clients:
        for lane in range(concurrency):
            clients.create_task(work(lane), name=f"client {lane}")


async def run_arrivals(plan: Sequence[PlannedRequest], clients: int, make: Make) -> None:
    """Start each request at its own time, however many are under way; the clients take turns."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as group:
        for request in plan:
            await asyncio.sleep(began + (request.arrives_at or 0.0) - loop.time())
            group.create_task(make(request, request.number % max(1, clients)), name=f"arrival {request.number}")
