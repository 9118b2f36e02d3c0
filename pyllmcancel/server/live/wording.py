"""Facts as server-sent events, encoded once for all readers that see the same, and the ids of events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from pyllmcancel.requests.request import RequestSummary
from pyllmcancel.server.live.events import FeedEntry, OtherEvent
from pyllmcancel.server.live.facts import Fact, PlainFact, RequestFact, Ring, StepsFact
from pyllmcancel.server.live.texts import Texts
from pyllmcancel.server.requests.answers import StepStatus, request_entry, step_sequence

CHUNK_EVENTS, CHUNK_BYTES = 256, 1 << 16  # about as much as one reader is given at once, so that no more is in memory
MAX_SHARED = 32  # chunks that are kept for other readers until the next flush


class Audience(NamedTuple):
    """Readers that see the same: events of one owner, or all; of some types, or all; with a replica's name, if any."""

    owner: str | None
    types: frozenset[str] | None = None
    replica: str | None = None


def frame(event_id: str | None, name: str, data: bytes) -> bytes:
    """Return a server-sent event; `data` is JSON in ASCII, which has no line feeds."""
    first = b"" if event_id is None else b"id: %b\n" % event_id.encode()
    return b"%bevent: %b\ndata: %b\n\n" % (first, name.encode(), data)


def as_json(event: Mapping[str, Any]) -> bytes:
    # In ASCII: for some readers other characters end a line, too.
    return json.dumps(event).encode()


class Frames:
    """Encodes the facts of a ring. `texts` are shown, if given."""

    def __init__(self, texts: Texts | None = None) -> None:
        self._texts = texts
        self.boot = secrets.token_hex(4)
        self._shared: dict[tuple[Audience, int], tuple[bytes, int]] = {}

    def entry(self, summary: RequestSummary) -> FeedEntry:
        entry = cast("FeedEntry", request_entry(summary))
        if self._texts is not None:
            entry["prompt"] = self._texts.prompt(summary)
            entry["output"] = self._texts.output(summary)
        return entry

    def event(self, fact: Fact, audience: Audience) -> OtherEvent | None:
        """Return the event; None if its audience may not see it, or does not want its type."""
        owner, types, event = audience.owner, audience.types, cast("OtherEvent | None", None)
        match fact:
            case StepsFact() if types is None or "step" in types:  # sent to all, as far as they may see it
                event = steps_event(fact, owner)
            case PlainFact(owner=its_owner, event=plain) if owner in (None, its_owner):
                event = plain if types is None or plain["type"] in types else None
            case RequestFact(type=name, at=at, summary=summary) if owner in (None, summary.owner):
                if types is None or name in types:
                    event = cast("OtherEvent", {"type": name, "at": at, "request": self.entry(summary)})
        if event is not None and audience.replica is not None:
            return cast("OtherEvent", {**event, "replica": audience.replica})
        return event

    def id_of(self, number: int) -> str:
        return f"{self.boot}-{number}"

    def number_in(self, event_id: str) -> int | None:
        """Return the number in an id of this server's; None for any other text."""
        boot, _, number = event_id.rpartition("-")
        is_number = number.isascii() and number.isdigit() and len(number) < 20
        return int(number) if boot == self.boot and is_number else None

    def after(self, ring: Ring[Fact], place: int, audience: Audience) -> tuple[bytes, int]:
        """Return the next events for this audience, possibly none, and the place after them."""
        chunk = b""
        while ring.remembers(place) and place < ring.newest and not chunk:
            shared = self._shared.get((audience, place))
            if shared is None:
                shared = self._encoded(ring, place, audience)
                if len(self._shared) < MAX_SHARED:
                    self._shared[audience, place] = shared
            chunk, place = shared
        return chunk, place

    def _encoded(self, ring: Ring[Fact], place: int, audience: Audience) -> tuple[bytes, int]:
        frames: list[bytes] = []
        n_bytes = 0
        for item in ring.after(place, CHUNK_EVENTS):
            place += 1
            event = self.event(item, audience)
            if event is None:
                continue
            frames.append(frame(self.id_of(place), event["type"], as_json(event)))
            n_bytes += len(frames[-1])
            if n_bytes >= CHUNK_BYTES:
                break
        return b"".join(frames), place

    def forget(self) -> None:
        """Forget the last chunk, which is incomplete after the ring has grown."""
        self._shared.clear()


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
