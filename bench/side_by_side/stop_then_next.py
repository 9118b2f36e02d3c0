"""Stop in the middle of a long prompt, then an unrelated request: how long until its first token?"""

from __future__ import annotations

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Exchange
from pyllmcancel.bench.scenarios import next_after_stop
from pyllmcancel.bench.scenarios.next_after_stop import NextAfterStopOptions

RUNS = 2


async def measure(subject: Subject) -> Figures:
    """Single values beside the scenario's own medians, so that rounds can be taken together."""
    run = await next_after_stop.run(subject.bench, NextAfterStopOptions(runs=subject.times(RUNS)))
    stopped = [entry for entry in run.exchanges if entry.ask.label == "long"]
    following = [entry for entry in run.exchanges if entry.ask.label == "next"]
    seconds = [since_stop(stop, then) for stop, then in zip(stopped, following, strict=True)]
    return run.figures | {"stop_to_first_token": [value for value in seconds if value is not None]}


def since_stop(stopped: Exchange, following: Exchange) -> float | None:
    if stopped.ended_at is None or not following.token_at:
        return None
    return following.token_at[0] - stopped.ended_at


MEASUREMENTS = (Measurement(name="stop-then-next", ctx_size=16_384, measure=measure),)
