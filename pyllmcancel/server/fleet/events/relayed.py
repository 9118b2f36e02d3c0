"""An event of another server's feed, checked, in the form in which it is passed on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from pyllmcancel.server.bodies import check_size
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.live.events import (
    AddedEvent,
    AdmittedEvent,
    CancelledEvent,
    EndedEvent,
    ReplicaEvent,
    SnapshotEvent,
    StatsEvent,
    StepEvent,
)
from pyllmcancel.server.live.wording import as_json

MAX_VALUES = 1_000_000  # of an event: the entries of 16,000 requests
OWN_BYTES = 400  # about the size of what is kept beside the JSON


class PeersStep(StepEvent):
    """A step of a peer, with the owners of its sequences."""

    owners: list[str]


PeersEvent = AddedEvent | AdmittedEvent | PeersStep | CancelledEvent | EndedEvent | StatsEvent | SnapshotEvent
EVENTS: TypeAdapter[Any] = TypeAdapter(Annotated[PeersEvent, Field(discriminator="type")])


@dataclass(frozen=True, slots=True)
class Relayed:
    """An event of another replica.

    Attributes
    ----------
    owners
        The owners of the event: for a step those of its sequences; for a general event `NO_OWNER`.
    data
        The event as JSON, for a reader who sees everything.
    """

    replica: str
    type: str
    owners: tuple[str, ...]
    data: bytes

    @property
    def n_bytes(self) -> int:
        return len(self.data) + OWN_BYTES

    def seen_by(self, owner: str | None, *, counts: bool = False) -> bytes | None:
        """Return the JSON for a reader who sees this owner's events, with `counts` also those of nobody, or all;
        None: nothing.
        """
        if owner is None or self.type == "replica" or (self.owners and set(self.owners) == {owner}):
            return self.data
        match self.type:
            case "step":
                return as_json(step_seen(json.loads(self.data), self.owners, owner))
            case "snapshot":
                return as_json(snapshot_seen(json.loads(self.data), owner, counts=counts))
            case "stats" if counts:
                return self.data
            case _:
                return None


def relayed(replica: str, text: bytes) -> Relayed:
    """Return the checked event; ValueError if it is invalid. Values are counted first: a parser blocks the event loop
    until it is done.
    """
    try:
        check_size(text, MAX_VALUES)
    except ApiError as error:
        raise ValueError(str(error)) from None
    event = EVENTS.validate_json(text)
    owners = owners_of(event)
    event.pop("owners", None)
    return Relayed(replica, event["type"], owners, json.dumps(as_of(replica, event), allow_nan=False).encode())


def as_of(replica: str, event: dict[str, Any]) -> dict[str, Any]:
    """Return the event as one of this replica: its entries have the fields that a server's own have, and no more."""
    for entry in [*event.get("requests", ()), *event.get("sessions", ()), event.get("request", {})]:
        for name in ("replica", "replicas"):  # the check adds these as null
            entry.pop(name, None)
    return {**event, "replica": replica}


def owners_of(event: dict[str, Any]) -> tuple[str, ...]:
    match event:
        case {"request": {"owner": owner}} | {"owner": owner}:
            return (owner,)
        case {"owners": owners, "sequences": sequences}:
            if len(owners) != len(sequences):
                raise ValueError("sequences without owners")
            return tuple(owners)
        case _:
            return ()


def replica_event(replica: str, state: Literal["live", "lost", "gone"], why: str | None = None) -> Relayed:
    """Return the event that reports whether the feed of this replica is read."""
    event: ReplicaEvent = {"type": "replica", "replica": replica, "state": state, "why": why, "epoch": time.time()}
    return Relayed(replica, "replica", (), as_json(event))


def step_seen(event: dict[str, Any], owners: tuple[str, ...], owner: str) -> dict[str, Any]:
    """Return a step as `pyllmcancel.server.live.wording.steps_event` has it: of other owners only the number of
    tokens.
    """
    parts = event["sequences"]
    seen = [part for part, whose in zip(parts, owners, strict=True) if whose == owner]
    hidden = sum(part["n_tokens"] for part in parts) - sum(part["n_tokens"] for part in seen)
    unseen = {"spared": False, "survivors": 0, "wasted": 0} if len(seen) < len(parts) else {}
    return {**event, **unseen, "sequences": seen, "others": event["others"] + hidden}


def snapshot_seen(event: Mapping[str, Any], owner: str, *, counts: bool = False) -> dict[str, Any]:
    own = {name: [one for one in event[name] if one["owner"] == owner] for name in ("sessions", "requests")}
    if counts:
        return {**event, **own, "all_owners": event["all_owners"] and all(own[name] == event[name] for name in own)}
    return {name: value for name, value in event.items() if name != "stats"} | own | {"all_owners": False}
