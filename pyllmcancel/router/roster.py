"""Which models are loaded, and whose turn is next: a state machine without input, output, or a clock of its own.

The rule:

1. Models that are wanted and not loaded wait in a line, by their oldest requests' arrival. The first takes free room,
   or that of the least recently used models that are neither pinned, computing, nor loaded for less time than their
   load took.
2. While the model that is to give way computes, its new requests wait in the line, too.

So a load never ends a computation, and no model waits for ever while others are used without a pause. Clients that
alternate between two models spend at most about half of the time on loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

TRIES = 3  # starts in a row that may fail
FIRST_PAUSE = 0.5  # seconds before the second start; then twice as long each time
LONG_LIFE = 60.0  # seconds of service after which the tries are counted anew
ANSWERS_WITHIN = 10.0  # seconds in which a process must say how many requests it has
FAILED_SECONDS = 30.0  # in which requests for a model that failed are refused at once


class State(Enum):
    """The state of a model's process."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    ENDING = "ending"
    FAILED = "failed"


class Ticket:
    """One request's wish for a model."""

    __slots__ = ("arrived", "name")

    def __init__(self, name: str, arrived: float) -> None:
        self.name = name
        self.arrived = arrived


@dataclass(frozen=True, slots=True)
class Start:
    """Start the model's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Find out whether the model's file is one and, if `whole`, what it will take, without loading it; report it to
    `Roster.fits` or `Roster.unfit`.
    """

    name: str
    whole: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """End the model's process; with `kill` at once, since nobody waits for what it does."""

    name: str
    kill: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the model's process how many requests it has, and report the answer to `Roster.inside`."""

    name: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Send the request to the model's process."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with an error."""

    ticket: Ticket
    why: str


Action = Start | Measure | Stop | Look | Admit | Refuse


@dataclass(slots=True)
class Model:
    """The facts about one model. Written by its `Roster` only.

    Attributes
    ----------
    need
        The bytes that it takes, or will take.
    is_file
        True if its file was found to be a model's since it was loaded last.
    is_measured
        True if `need` was measured, too, or cannot be.
    is_measuring
        True while this is found out.
    asked
        True if it was asked for by itself, so that its load goes on without a request.
    waiting, running
        The requests that wait for it, the oldest first, and those that were sent to it.
    n_inside
        The number of requests that its process has, as it told last: some outlive their connection.
    asked_after
        The time of the last end of a connection: what the process told before says nothing of that request.
    unknown
        True if the process has told nothing since then.
    idle_after
        The seconds without a request after which it is unloaded, as its last request wished; infinite: never.
    usual_idle
        The same, if a request has no wish.
    asleep
        True if it was unloaded for that reason.
    """

    name: str
    need: int = 0
    pinned: bool = False
    state: State = State.UNLOADED
    is_file: bool = False
    is_measured: bool = False
    is_measuring: bool = False
    asked: bool = False
    waiting: dict[Ticket, None] = field(default_factory=dict)
    running: set[Ticket] = field(default_factory=set)
    n_inside: int = 0
    asked_after: float = -math.inf
    unknown: bool = False
    yields: bool = False
    asked_at: float = 0.0
    started_at: float = 0.0
    loaded_at: float = 0.0
    load_seconds: float = 0.0
    used_at: float = -math.inf
    idle_after: float = math.inf
    usual_idle: float = math.inf
    asleep: bool = False
    tries: int = 0
    retry_at: float = -math.inf
    failed_at: float = 0.0
    why: str = ""

    @property
    def wanted(self) -> bool:
        return self.asked or bool(self.waiting)

    @property
    def is_coming(self) -> bool:
        return self.wanted or self.state is State.LOADING

    @property
    def since(self) -> float:
        """The arrival of its oldest wish."""
        oldest = next((ticket.arrived for ticket in self.waiting), math.inf)
        return min(oldest, self.asked_at if self.asked else math.inf)

    @property
    def has_requests(self) -> bool:
        """True if it is known to have any."""
        return bool(self.running) or (self.n_inside > 0 and not self.unknown)

    def is_unsure(self, now: float) -> bool:
        """Return whether it may have requests, of which its process will tell."""
        return self.unknown and now < self.asked_after + ANSWERS_WITHIN

    def is_busy(self, now: float) -> bool:
        return self.has_requests or self.is_unsure(now)

    def is_refused(self, now: float) -> bool:
        """Return whether it has failed lately, so that requests for it are refused at once."""
        return self.state is State.FAILED and now < self.failed_at + FAILED_SECONDS

    @property
    def takes_room(self) -> bool:
        return self.state in (State.LOADING, State.LOADED, State.ENDING)

    @property
    def stays_until(self) -> float:
        return self.loaded_at + self.load_seconds


class Roster:
    """All models, and the room for them. Each event is a method; after some, `decide` says what is to be done.

    Parameters
    ----------
    most
        The limit of models that are loaded at once; infinite: no limit.
    room
        The limit of bytes that they take together; infinite: no limit.
    """

    def __init__(self, most: float = math.inf, room: float = math.inf) -> None:
        self.most = most
        self.room = room
        self.models: dict[str, Model] = {}
        self.next_at = math.inf  # when `decide` should be called again, though nothing has happened
        self._actions: list[Action] = []

    # -- the list -----------------------------------------------------------------------------------------------------

    def add(self, name: str, need: int = 0, *, pinned: bool = False, idle_after: float = math.inf) -> None:
        """Add a model, or change one."""
        model = self.models.setdefault(name, Model(name))
        if model.usual_idle != idle_after:
            model.idle_after = model.usual_idle = idle_after
        model.pinned = pinned
        if model.state is State.UNLOADED:
            model.need, model.is_file, model.is_measured = need, False, False
        else:
            model.need = max(need, model.need)

    def fits(self, name: str, need: int = 0, *, whole: bool = True) -> None:
        """Note the bytes that a model will take, if they could be measured; without `whole` that its file is one."""
        model = self.models[name]
        model.is_file, model.is_measured, model.is_measuring = True, model.is_measured or whole, False
        model.need = max(need, model.need)

    def unfit(self, name: str, why: str, now: float) -> None:
        """The model cannot be loaded: no other one has to make room for it."""
        model = self.models[name]
        model.is_measuring = False
        if model.state is State.UNLOADED and model.wanted:
            self.failed(name, now, why)

    def measured(self, name: str, need: int) -> None:
        """Note the bytes that a loaded model takes."""
        self.models[name].need = need

    # -- wishes -------------------------------------------------------------------------------------------------------

    def want(self, name: str, now: float) -> Ticket:
        """A request for the model has arrived."""
        model, ticket = self.models[name], Ticket(name, now)
        if model.is_refused(now):
            self._actions.append(Refuse(ticket, model.why))
            return ticket
        if model.state is State.FAILED:
            self._forgive(model)
        model.waiting[ticket] = None
        return ticket

    def ask(self, name: str, now: float) -> None:
        """Somebody asks for the model by itself."""
        model = self.models[name]
        if model.state is State.FAILED:
            self._forgive(model)
        if not model.asked and model.state is not State.LOADED:
            model.asked, model.asked_at = True, now

    def drop(self, ticket: Ticket, now: float, *, keep: float | None = None) -> None:
        """A request has ended, or its client has left. Idempotent.

        Parameters
        ----------
        keep
            The seconds for which the model is to stay after this request; None: as configured.
        """
        model = self.models.get(ticket.name)
        if model is None:
            return
        model.waiting.pop(ticket, None)
        if ticket in model.running:
            model.running.discard(ticket)
            model.used_at = model.asked_after = now
            model.unknown = True
            model.idle_after = model.usual_idle if keep is None else keep

    def unload(self, name: str, why: str) -> None:
        """Somebody wants the model's room back: all who wait for it are refused."""
        model = self.models[name]
        model.asked, model.asleep = False, False
        self._refuse_all(model, why)
        if model.state in (State.LOADING, State.LOADED):
            self._stop(model, kill=model.state is State.LOADING)

    def gone(self, name: str, why: str) -> None:
        """The model that was to be started is not listed any more."""
        model = self.models[name]
        model.state, model.asked = State.UNLOADED, False
        self._refuse_all(model, why)

    # -- processes ----------------------------------------------------------------------------------------------------

    def loaded(self, name: str, now: float) -> None:
        """The model's process serves."""
        model = self.models[name]
        if model.state is State.LOADING:
            model.state, model.asked, model.asleep = State.LOADED, False, False
            model.loaded_at = model.used_at = now
            model.load_seconds = now - model.started_at

    def inside(self, name: str, n_requests: int, asked_at: float, now: float) -> None:
        """Note the number of requests that the model's process has, as it told when it was asked at `asked_at`."""
        model = self.models[name]
        if asked_at < model.asked_after:
            return
        if model.n_inside and not n_requests:
            model.used_at = now
        model.n_inside, model.unknown = n_requests, False

    def stuck(self, name: str) -> None:
        """The model's process computes nothing, and will not say how many requests it has: it counts as having none."""
        self.models[name].asked_after = -math.inf

    def ended(self, name: str, now: float, why: str = "", *, hopeless: bool = False) -> None:
        """The model's process has ended.

        Parameters
        ----------
        why
            The reason of an end that nobody asked for.
        hopeless
            True if another start would end in the same way.
        """
        model = self.models[name]
        state, model.state = model.state, State.UNLOADED
        model.n_inside, model.unknown, model.is_file, model.is_measured = 0, False, False, False
        model.running.clear()  # their connections are closed, and each has its error
        if state is State.ENDING:
            return
        if state is State.LOADED:
            model.asked, model.asked_at = True, now  # it is to come back, even if nobody waits
            if now - model.loaded_at > LONG_LIFE:
                model.tries = 0
        model.tries += 1
        model.why = why
        if hopeless or model.tries >= TRIES:
            self.failed(name, now, why)
        else:
            model.retry_at = now + FIRST_PAUSE * 2 ** (model.tries - 1)

    def failed(self, name: str, now: float, why: str) -> None:
        """The model, which has no process, cannot be loaded."""
        model = self.models[name]
        model.state, model.failed_at, model.asked, model.why = State.FAILED, now, False, why
        self._refuse_all(model, why)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Action]:
        """Return what is to be done now, in this order."""
        self.next_at = math.inf
        self._leave_loads()
        self._forget_tries(now)
        for model in self.models.values():
            model.yields = False
        while self._start_next(now):
            pass
        for model in self.models.values():
            if model.state is State.LOADED and not model.yields:
                self._admit_all(model)
        self._sleep(now)
        actions, self._actions = self._actions, []
        return actions

    def _leave_loads(self) -> None:
        for model in self.models.values():
            if model.state is State.LOADING and not model.wanted:
                self._stop(model, kill=True)

    def _forget_tries(self, now: float) -> None:
        for model in self.models.values():
            if not model.wanted and model.state is State.UNLOADED and model.retry_at <= now:
                model.tries = 0

    def _start_next(self, now: float) -> bool:
        """Start the first in the line, or see to it that it gets room; returns whether there may be a next one."""
        model = next(self._line(now), None)
        if model is None:
            return False
        others = [one for one in self.models.values() if one.takes_room]
        fits = self._fits(model, others)
        # Its load could fail, or need more room than its file has bytes: that is known before another one has to go.
        whole = self.room < math.inf or not fits
        is_open = not (model.is_measured if whole else model.is_file)
        if is_open and not model.is_measuring:
            model.is_measuring = True
            self._actions.append(Measure(model.name, whole))
        if not fits:
            if self._fits(model, [one for one in others if one.pinned]):
                self._make_room(model, others, now, stops=not is_open)
                return False
            model.asked = False
            self._refuse_all(model, self._too_large(model))
            return True
        if is_open:
            return False
        model.state, model.started_at = State.LOADING, now
        self._actions.append(Start(model.name))
        return True

    def _line(self, now: float) -> Iterator[Model]:
        found = []
        for model in self.models.values():
            if model.state is State.UNLOADED and model.wanted:
                if model.retry_at > now:
                    self._again_at(model.retry_at)
                else:
                    found.append(model)
        return iter(sorted(found, key=lambda model: model.since))

    def _fits(self, model: Model, others: list[Model]) -> bool:
        return len(others) < self.most and sum(one.need for one in others) + model.need <= self.room

    def _make_room(self, model: Model, others: list[Model], now: float, *, stops: bool) -> None:
        """Choose the models that give way; with `stops` unload them as soon as none computes, and each has stayed long
        enough.
        """
        left = [one for one in others if one.state is not State.ENDING]
        chosen: list[Model] = []
        for one in sorted(left, key=lambda one: (one.has_requests, one.used_at)):
            if self._fits(model, left):
                break
            if one.state is State.LOADED and not one.pinned:
                left = [other for other in left if other is not one]
                chosen.append(one)
        if not chosen or not self._fits(model, left):
            return  # others are ending, or loading, and come first
        for one in chosen:
            one.yields = now >= one.stays_until
            if not one.yields:
                self._again_at(one.stays_until)
        if all(one.yields and self._is_idle(one, now) for one in chosen) and stops:
            for one in chosen:
                self._stop(one, kill=False)

    def _is_idle(self, model: Model, now: float) -> bool:
        """Return whether the model has no request; if nobody knows, have its process asked, and return False."""
        if model.is_busy(now) and not model.has_requests:
            self._actions.append(Look(model.name))
            self._again_at(model.asked_after + ANSWERS_WITHIN)
        return not model.is_busy(now)

    def _too_large(self, model: Model) -> str:
        if model.need > self.room:
            return f"{model.name} takes {model.need:,} bytes, and all models together may take {self.room:,.0f}"
        return f"there is no room for {model.name} beside the models that are pinned"

    def _admit_all(self, model: Model) -> None:
        for ticket in list(model.waiting):
            del model.waiting[ticket]
            model.running.add(ticket)
            self._actions.append(Admit(ticket))

    def _sleep(self, now: float) -> None:
        for model in self.models.values():
            if model.state is State.LOADED and not (model.has_requests or model.pinned or model.waiting):
                until = model.used_at + model.idle_after
                if now < until:
                    self._again_at(until)
                elif self._is_idle(model, now):
                    model.asleep = True
                    self._stop(model, kill=False)

    def _stop(self, model: Model, *, kill: bool) -> None:
        model.state = State.ENDING
        self._actions.append(Stop(model.name, kill))

    def _refuse_all(self, model: Model, why: str) -> None:
        self._actions += [Refuse(ticket, why) for ticket in model.waiting]
        model.waiting.clear()

    def _forgive(self, model: Model) -> None:
        model.state, model.tries, model.retry_at, model.why = State.UNLOADED, 0, -math.inf, ""

    def _again_at(self, at: float) -> None:
        self.next_at = min(self.next_at, at)
