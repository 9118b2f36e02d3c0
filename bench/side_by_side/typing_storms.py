"""Eight keys 0.3 s apart, prompts that differ at their head, sockets kept open: the last key's first token."""

from __future__ import annotations

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.scenarios import typing_storm
from pyllmcancel.bench.scenarios.typing_storm import TypingStormOptions
from pyllmcancel.bench.summary import summarise


async def measure_superseding(subject: Subject) -> Figures:
    """All requests carry one key, in the header that the server knows, and the newest supersedes the others."""
    if not subject.running.peer.supersede_headers:
        return {"not_measured": "no request of it supersedes another"}
    return await storm(subject, TypingStormOptions(runs=1))


async def measure_plain(subject: Subject) -> Figures:
    """The same without a key."""
    return await storm(subject, TypingStormOptions(supersede=False))


async def storm(subject: Subject, options: TypingStormOptions) -> Figures:
    run = await typing_storm.run(subject.bench, options)
    return run.figures | {"errors": summarise(run)["errors_by_kind"]}


MEASUREMENTS = (
    Measurement(name="typing-storm", measure=measure_superseding, rounds=3),
    Measurement(name="typing-storm-no-key", measure=measure_plain, rounds=1),
)
