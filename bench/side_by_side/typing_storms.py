"""Eight keys 0.3 s apart, prompts that differ at their head, sockets kept open: the last key's first token."""

from __future__ import annotations

from bench.side_by_side.measurement import Figures, Measurement, Subject
from pyllmcancel.bench.scenarios import typing_storm
from pyllmcancel.bench.scenarios.typing_storm import TypingStormOptions
from pyllmcancel.bench.summary import summarise


async def measure_session(subject: Subject) -> Figures:
    """All keys in one session, by the header that the server knows."""
    if subject.running.peer.session_header is None:
        return {"not_measured": "it has no sessions"}
    return await storm(subject, TypingStormOptions(runs=1))


async def measure_plain(subject: Subject) -> Figures:
    """The same without a word of sessions."""
    return await storm(subject, TypingStormOptions(session=False))


async def storm(subject: Subject, options: TypingStormOptions) -> Figures:
    run = await typing_storm.run(subject.bench, options)
    return run.figures | {"errors": summarise(run)["errors_by_kind"]}


MEASUREMENTS = (
    Measurement(name="typing-storm", measure=measure_session, rounds=3),
    Measurement(name="typing-storm-no-session", measure=measure_plain, rounds=1),
)
