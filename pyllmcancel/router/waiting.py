"""The requests that wait for a model to be loaded: listed, and cancelled, as those that a model's process has; and the
holds for requests that have not come yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import InvalidRequestError, RequestCancelled
from pyllmcancel.events import Usage
from pyllmcancel.requests.holds import Holds
from pyllmcancel.server.wire.usage import usage_json

NOTHING = Usage(0, 0, 0)


@dataclass(eq=False, slots=True)
class Waiting:
    """One request. `give_up` ends it with an error; it returns whether it still waited.

    `streams` are the names by which its stream can be taken up again, if it will have such a stream.
    """

    id: str
    owner: str
    model: str
    session: str | None
    parent: str | None
    supersede: str | None
    give_up: Callable[[Exception], bool]
    streams: tuple[str, ...] = ()
    arrived: float = field(default_factory=time.monotonic)
    created: float = field(default_factory=time.time)

    def cancel(self, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        return self.give_up(RequestCancelled(reason, NOTHING))

    def entry(self) -> dict[str, Any]:
        """Return the request as ``/v1/requests`` lists it."""
        nothing = ("finish_reason", "cancel_reason", "superseded_by", "cancel_latency_ms", "error", "max_tokens")
        zero = ("priority", "prompt_tokens", "prompt_tokens_done", "cached_tokens", "completion_tokens")
        return {
            "id": self.id,
            "object": "request",
            "status": "waiting",
            "phase": "loading",
            "model": self.model,
            "owner": self.owner,
            "session": self.session,
            "parent_session": self.parent,
            "supersede": self.supersede,
            "n": 1,
            "slots": [],
            "paused": False,
            **dict.fromkeys(zero, 0),
            **dict.fromkeys(nothing),
            "created": self.created,
            "seconds": round(time.monotonic() - self.arrived, 4),
            "times": {"arrived": self.arrived} | dict.fromkeys(("admitted", "first_token", "cancelled", "ended")),
        }

    def cancelled(self) -> dict[str, Any]:
        """Return the answer to its cancel."""
        return {
            "id": self.id,
            "outcome": "cancelled",
            "reason": str(CancelReason.EXPLICIT),
            "phase": "loading",
            "cancel_latency_ms": 0.0,
            "usage": usage_json(NOTHING),
        }


class WaitingRequests:
    """All of them, the oldest first. Used in the event loop only."""

    def __init__(self) -> None:
        self._requests: dict[Waiting, None] = {}
        self.holds = Holds()  # of all models: a process holds nothing for those that are loaded later

    def check_new(self, owner: str, request_id: str) -> None:
        """Raise InvalidRequestError if one of the owner's requests has this id: a cancel could mean either."""
        if any(one.id == request_id for one in self.of(owner)):
            raise InvalidRequestError(f"request id {request_id!r} is in use by a request that has not ended", "id")

    def add(self, request: Waiting) -> None:
        """Add a request; those with the same supersede key are superseded by it."""
        older = self.with_key(request.owner, request.supersede)
        self._requests[request] = None
        for one in older:
            one.cancel(CancelReason.SUPERSEDED)

    def with_key(self, owner: str, key: str | None) -> list[Waiting]:
        """Return an owner's requests with this supersede key; none without a key."""
        return [one for one in self.of(owner) if key is not None and one.supersede == key]

    def with_stream(self, owner: str, name: str) -> list[Waiting]:
        """Return an owner's requests whose streams will have this name."""
        return [one for one in self.of(owner) if name in one.streams]

    def discard(self, request: Waiting) -> None:
        """Idempotent."""
        self._requests.pop(request, None)

    def of(self, owner: str | None) -> Iterator[Waiting]:
        """Iterate over an owner's requests; None: everybody's."""
        return (one for one in list(self._requests) if owner in (None, one.owner))

    def count(self, owner: str) -> int:
        return sum(1 for _ in self.of(owner))

    def family(self, owner: str | None, session: str, *, descendants: bool) -> list[Waiting]:
        """Return the requests of a session and, with `descendants`, of the sessions below it."""
        known = {session}
        n_known = 0
        while descendants and n_known < len(known):
            n_known = len(known)
            known |= {one.session for one in self.of(owner) if one.session is not None and one.parent in known}
        return [one for one in self.of(owner) if one.session in known]
