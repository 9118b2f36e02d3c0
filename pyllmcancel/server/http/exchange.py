"""The facts of one HTTP request, which the layers around its endpoint note for each other."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyllmcancel.requests.request import NO_OWNER

if TYPE_CHECKING:
    from starlette.types import Scope

    from pyllmcancel.requests.request import Request


@dataclass(slots=True)
class Exchange:
    """The facts of one HTTP request. Written in the event loop only, each by the layer that is named.

    Attributes
    ----------
    owner, is_admin
        The owner of the key that the request was sent with, and whether it is an administrator's. By `ApiKeys`.
    is_from_front, sees_all
        True if a front has sent the request, with its key; and what the front says of the sender. By `FromFront`.
    request_id, arrived_at
        The id, and the monotonic time of the arrival. By `RequestContext`.
    created_at
        The time that the answer says it was created, in seconds since the epoch.
    client_gone
        True if the client has left, so that it was not answered.
    request
        The engine's request, once it has arrived. By `Arriving`.
    hold, link
        The body's share of a limit, and the link to a front. By `BodyLimit` and `FrontLinks`.
    spreads
        True if a front may send the request to another worker than others of its session. By `Batches`.
    ignored, unenforced, unreached
        The fields, the parts of schemas and the workers that the answer's headers report.
    """

    owner: str = NO_OWNER
    is_admin: bool = False
    is_from_front: bool = False
    sees_all: bool | None = None
    request_id: str = ""
    arrived_at: float = 0.0
    created_at: float = field(default_factory=time.time)
    client_gone: bool = False
    request: Request | None = None
    hold: Any = None
    link: Any = None
    spreads: bool = False
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


def owner_of(scope: Scope) -> str:
    """Return the owner of the key that the request was sent with."""
    return exchange_of(scope).owner


def request_id_of(scope: Scope) -> str:
    """Return the id that the middleware gave this request, or took from its client."""
    return exchange_of(scope).request_id


def mark_client_gone(scope: Scope) -> None:
    """Note that the client has left, so that it was not answered."""
    exchange_of(scope).client_gone = True
