"""The load generator's scenarios: a typing storm, with and without a key of superseding; stop, then next."""

from __future__ import annotations

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.client import Exchange
from pyllmcancel.bench.scenarios import next_after_stop, typing_storm
from pyllmcancel.bench.scenarios.next_after_stop import NextAfterStopOptions
from pyllmcancel.bench.scenarios.typing_storm import TypingStormOptions
from pyllmcancel.bench.summary import summarise

RUNS = 2


async def measure_superseding(subject: Subject) -> Figures:
    """Eight prompts 0.3 s apart under one key of superseding, sockets kept open: the last one's first token."""
    if not subject.running.peer.supersede_headers:
        return {"not_measured": "no request of it supersedes another"}
    return await storm(subject, TypingStormOptions(runs=1))


async def measure_plain(subject: Subject) -> Figures:
    """The same storm without a key."""
    return await storm(subject, TypingStormOptions(supersede=False))


async def storm(subject: Subject, options: TypingStormOptions) -> Figures:
    run = await typing_storm.run(subject.bench, options)
    return run.figures | {"errors": summarise(run)["errors_by_kind"]}


async def measure_next(subject: Subject) -> Figures:
    """Stop in the middle of a long prompt, then an unrelated request: its first token.

    Single values stand beside the scenario's own medians, so that rounds can be taken together.
    """
    run = await next_after_stop.run(subject.bench, NextAfterStopOptions(runs=subject.times(RUNS)))
    stopped = [entry for entry in run.exchanges if entry.ask.label == "long"]
    following = [entry for entry in run.exchanges if entry.ask.label == "next"]
    seconds = [since_stop(stop, then) for stop, then in zip(stopped, following, strict=True)]
    return run.figures | {"stop_to_first_token": [value for value in seconds if value is not None]}


def since_stop(stopped: Exchange, following: Exchange) -> float | None:
    if stopped.ended_at is None or not following.token_at:
        return None
    return following.token_at[0] - stopped.ended_at


MEASUREMENTS = (
    Measurement(name="typing-storm", measure=measure_superseding, rounds=3),
    Measurement(name="typing-storm-no-key", measure=measure_plain, rounds=1),
    Measurement(name="stop-then-next", ctx_size=16_384, measure=measure_next),
)
