"""Facts as events for an audience: an owner, or None for all owners."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pyllmcancel.server.live.events import FeedEntry, OtherEvent, StatsEvent
from pyllmcancel.server.live.facts import AddedFact, AdmittedFact, CancelledFact, EndedFact, Fact, StatsFact, StepsFact
from pyllmcancel.server.requests.answers import request_entry, step_sequence

if TYPE_CHECKING:
    from pyllmcancel.requests.request import RequestSummary
    from pyllmcancel.server.live.texts import Texts
    from pyllmcancel.server.requests.answers import StepStatus


def frame(event_id: str | None, name: str, data: bytes) -> bytes:
    """Return a server-sent event; `data` is JSON in ASCII, which has no line feeds."""
    first = b"" if event_id is None else b"id: %b\n" % event_id.encode()
    return b"%bevent: %b\ndata: %b\n\n" % (first, name.encode(), data)


def as_json(event: Mapping[str, Any]) -> bytes:
    # In ASCII: for some readers other characters end a line, too.
    return json.dumps(event).encode()


TYPE_OF: dict[type[Fact], str] = {
    AddedFact: "added",
    AdmittedFact: "admitted",
    StepsFact: "step",
    CancelledFact: "cancelled",
    EndedFact: "ended",
    StatsFact: "stats",
}


class Wording:
    """Converts facts to events, with texts if these are exposed."""

    def __init__(self, texts: Texts | None) -> None:
        self._texts = texts

    def entry(self, summary: RequestSummary) -> FeedEntry:
        entry = cast("FeedEntry", request_entry(summary))
        if self._texts is not None:
            entry["prompt"] = self._texts.prompt(summary)
            entry["output"] = self._texts.output(summary)
        return entry

    def event(self, fact: Fact, audience: str | None, types: frozenset[str] | None) -> OtherEvent | None:
        """Return the event; None if its audience may not see it, or does not want its type."""
        if types is not None and TYPE_OF[type(fact)] not in types:
            return None
        return self._word(fact, audience) if audience is None or is_seen_by(fact, audience) else None

    def _word(self, fact: Fact, audience: str | None) -> OtherEvent:
        match fact:
            case StepsFact():
                return steps_event(fact, audience)
            case AddedFact(at=at, summary=summary):
                return {"type": "added", "at": at, "request": self.entry(summary)}
            case EndedFact(at=at, summary=summary):
                return {"type": "ended", "at": at, "request": self.entry(summary)}
            case AdmittedFact():
                return {
                    "type": "admitted",
                    "at": fact.at,
                    "id": fact.id,
                    "owner": fact.owner,
                    "slots": list(fact.slots),
                    "cached_tokens": fact.cached_tokens,
                }
            case CancelledFact():
                return {
                    "type": "cancelled",
                    "at": fact.at,
                    "id": fact.id,
                    "owner": fact.owner,
                    "reason": fact.reason,
                    "superseded_by": fact.superseded_by,
                }
            case StatsFact(stats=stats):
                told: StatsEvent = {"type": "stats", **stats}  # type: ignore[typeddict-item]  # a key that may be absent
                return told


def is_seen_by(fact: Fact, owner: str) -> bool:
    """Return whether this owner may see any part of it; steps are sent to all, as far as they may see them."""
    match fact:
        case AddedFact(summary=summary) | EndedFact(summary=summary):
            return summary.owner == owner
        case AdmittedFact() | CancelledFact():
            return fact.owner == owner
        case StepsFact():
            return True
        case StatsFact():
            return False


def steps_event(fact: StepsFact, audience: str | None) -> OtherEvent:
    """Return the event of these steps, as `audience` may see it.

    Of other owners' sequences the event has only the number of tokens. It does not show whether, or when, one of them
    was cancelled.
    """
    last = fact.last
    parts = fact.parts()
    seen = [part for part in parts if audience in (None, part.owner)]
    sees_all = len(seen) == len(parts)
    return {
        "type": "step",
        "number": last.number,
        "n_steps": fact.n_steps,
        "at": fact.at,
        "until": last.started_at + last.seconds,
        "busy": fact.busy,
        "status": cast("StepStatus", last.status),
        "spared": last.spared and sees_all,
        "survivors": last.survivors if sees_all else 0,
        "wasted": fact.wasted if sees_all else 0,
        "threads": last.threads,
        "sequences": [step_sequence(part) for part in seen],
        "others": sum(part.n_tokens for part in parts) - sum(part.n_tokens for part in seen),
    }
