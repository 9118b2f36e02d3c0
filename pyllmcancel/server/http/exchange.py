"""The facts of one HTTP request, which the layers around its endpoint note for each other."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope

from pyllmcancel.requests.request import NO_OWNER, Request


@dataclass(slots=True)
class Exchange:
    """The facts of one HTTP request. Written in the event loop only, each by the layer that is named."""

    owner: str = NO_OWNER  # of the key that the request was sent with; by `ApiKeys`, or `FromFront`
    is_admin: bool = False  # the key is an administrator's
    is_from_front: bool = False  # a front has sent the request, with its key; by `FromFront`
    sees_all: bool | None = None  # what the front says of the sender
    request_id: str = ""  # by `RequestContext`, as the next one
    arrived_at: float = 0.0  # monotonic seconds
    created_at: float = field(default_factory=time.time)  # the time that the answer says, in seconds since the epoch
    client_gone: bool = False  # the client has left, so that it was not answered
    request: Request | None = None  # the engine's, once it has arrived; by `Arriving`
    hold: Any = None  # the body's share of a limit; by `BodyLimit`
    link: Any = None  # to a front; by `FrontLinks`
    spreads: bool = False  # a front may send it to another worker than others of its session; by `Batches`
    # The fields, the parts of schemas and the workers that the answer's headers report.
    ignored: Collection[str] = ()
    unenforced: list[str] = field(default_factory=list)
    unreached: dict[str, str] = field(default_factory=dict)


def exchange_of(scope: Scope) -> Exchange:
    """Return the facts of a request, which are made at the first call."""
    state: dict[str, Any] = scope.setdefault("state", {})
    found: Exchange | None = state.get("exchange")
    if found is None:
        found = state["exchange"] = Exchange()
    return found
