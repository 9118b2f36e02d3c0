"""The facts about a model's process, from which the `Roster` decides, and the events that change nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from asyncio import Future

    from pyllmcancel.front.worker import Worker

FAILED_SECONDS = 30.0  # in which requests for a model that failed are refused at once
AWAY_SECONDS = 10.0  # in which requests wait for a worker elsewhere that is away; then they are refused at once


class State(Enum):
    """The state of a model's process."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    ENDING = "ending"
    FAILED = "failed"


Name = tuple[str, str]  # its kind, and the name itself


class Claim(NamedTuple):
    """The facts that decide the place of a request."""

    model: str
    owner: str = ""
    names: tuple[Name, ...] = ()  # the first one counts most
    weight: int = 0  # the bytes of its body, which stand for its tokens: nobody in front counts those
    avoids: frozenset[str] = frozenset()  # the processes that did not take it
    idle: bool = False  # it neither has its model loaded, nor keeps it loaded


@dataclass(eq=False, slots=True)
class Ticket:
    """One request's wish for a model."""

    replica: Replica  # the process that it waits for, or was sent to
    arrived: float
    claim: Claim
    is_noted: bool = False  # its names count in `Places`
    # Set by the keeper: its process, as soon as the request may be sent there; ApiError if it never may.
    admitted: Future[Worker] = field(init=False)

    def move(self, replica: Replica) -> None:
        """Let a request that waits wait for another process of its model."""
        del self.replica.waiting[self]
        self.replica = replica
        replica.waiting[self] = None

    def drop(self, now: float, *, keep: float | None = None) -> None:
        """It has ended, or its client has left; the model stays `keep` seconds, or as configured. Idempotent."""
        replica = self.replica
        replica.waiting.pop(self, None)
        if self in replica.running:
            replica.running.discard(self)
            if not self.claim.idle:
                replica.used_at = now
                replica.idle_after = replica.usual_idle if keep is None else keep


@dataclass(slots=True)
class Replica:
    """The facts about one process of a model. Written by its `Roster`, and by the `Keeper` of both."""

    name: str
    of: str = ""  # the model whose process it is
    slots: int = 1  # the number of requests that it computes at once
    is_remote: bool = False  # a worker elsewhere, which is neither started nor ended here, and takes no room
    is_listed: bool = True  # it is among the processes of its model, as those are configured now
    is_stuck: bool = False  # it computes nothing, and has not answered since
    renews: bool = False  # it is to be started anew
    drains: bool = False  # from then on until it serves again: it gets no new requests
    need: int = 0  # the bytes that it takes, or will take
    pinned: bool = False
    state: State = State.UNLOADED
    is_measured: bool = False  # `need` was measured since it was loaded last, or cannot be
    is_measuring: bool = False  # this is being found out
    waiting: dict[Ticket, None] = field(default_factory=dict)  # the requests that wait for it, the oldest first
    running: set[Ticket] = field(default_factory=set)  # those that it has, each until its computation has ended
    yields: bool = False
    asked_at: float = math.inf  # when it was asked for by itself, so that its load goes on without a request
    started_at: float = 0.0
    loaded_at: float = 0.0
    load_seconds: float = 0.0
    used_at: float = -math.inf
    # The seconds without a request after which it is unloaded, as its last request wished, and without a wish.
    idle_after: float = math.inf
    usual_idle: float = math.inf
    asleep: bool = False  # it was unloaded for that reason
    tries: int = 0
    retry_at: float = -math.inf
    failed_at: float = 0.0
    why: str = ""  # the reason why it failed
    lines: list[str] = field(default_factory=list)  # the last ones of its log

    @property
    def wanted(self) -> bool:
        return self.asked_at < math.inf or not all(ticket.claim.idle for ticket in self.waiting)

    @property
    def is_busy(self) -> bool:
        """True if it has requests that are not idle."""
        return not all(ticket.claim.idle for ticket in self.running)

    @property
    def is_open(self) -> bool:
        """True if it takes new requests."""
        return self.state is State.LOADED and not self.yields and not self.drains

    @property
    def since(self) -> float:
        """The arrival of its oldest wish."""
        return min(self.asked_at, *(ticket.arrived for ticket in self.waiting if not ticket.claim.idle), math.inf)

    def is_refused(self, now: float) -> bool:
        """Return whether it has failed lately, so that requests for it are refused at once."""
        return self.state is State.FAILED and now < self.failed_at + FAILED_SECONDS

    @property
    def takes_room(self) -> bool:
        return not self.is_remote and self.state in (State.LOADING, State.LOADED, State.ENDING)

    @property
    def stays_until(self) -> float:
        return self.loaded_at + self.load_seconds

    # -- events -------------------------------------------------------------------------------------------------------

    def fits(self, need: int = 0) -> None:
        """Note the bytes that the model will take, if they could be measured."""
        self.is_measured, self.is_measuring = True, False
        self.need = max(need, self.need)

    def ask(self, now: float) -> None:
        """Somebody asks for the model by itself."""
        if self.state is State.FAILED:
            self.forgive()
        if self.state is not State.LOADED:
            self.asked_at = min(now, self.asked_at)

    def forgive(self) -> None:
        self.state, self.tries, self.retry_at, self.why = State.UNLOADED, 0, -math.inf, ""

    def loaded(self, now: float, slots: int = 1) -> None:
        """The process serves, with this number of requests at once."""
        if self.state is State.LOADING:
            self.state, self.slots = State.LOADED, slots
            self.asked_at, self.asleep, self.drains = math.inf, False, False
            self.loaded_at = self.used_at = now
            self.load_seconds = now - self.started_at

    def went(self, now: float, why: str) -> None:
        """A worker elsewhere cannot be used. Its requests go on as long as their connections do."""
        self.state, self.failed_at, self.why = State.UNLOADED, now, why
        self.running.clear()
