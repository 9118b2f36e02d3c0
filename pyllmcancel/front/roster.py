"""Which models are loaded, and whose turn is next: a state machine without input, output, or a clock of its own.

An entry stands for one process of a model. A model has one, or several, its replicas. The rule:

1. Models that are wanted and not loaded wait in a line, by their oldest requests' arrival. The first takes free room,
   or that of the least recently used models that are neither pinned, computing, nor loaded for less time than their
   load took.
2. While the model that is to give way computes, its new requests wait in the line, too.
3. A replica beside one that serves takes free room only, after all that wait. The replicas of a model go idle together.

So a load never ends a computation, and no model waits for ever while others are used without a pause. Clients that
alternate between two models spend at most about half of the time on loads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pyllmcancel.front.model import AWAY_SECONDS, FAILED_SECONDS, Model, State, Ticket

TRIES = 3  # starts in a row that may fail
FIRST_PAUSE = 0.5  # seconds before the second start; then twice as long each time
LONG_LIFE = 60.0  # seconds of service after which the tries are counted anew


@dataclass(frozen=True, slots=True)
class Start:
    """Start the model's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Find out what the model will take, without loading it; report it to `Roster.fits` or `Roster.unfit`."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the model's process; with `kill` at once, since nobody waits for what it does."""

    name: str
    kill: bool


@dataclass(frozen=True, slots=True)
class Admit:
    """Send the request to the model's process."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the request with an error."""

    ticket: Ticket
    why: str
    code: str = "model_not_loaded"


Action = Start | Measure | Stop | Admit | Refuse


class Roster:
    """All models, and the room for them. Each event is a method; after some, `decide` says what is to be done.

    Parameters
    ----------
    most
        The limit of models that are loaded at once; infinite: no limit.
    room
        The limit of bytes that they take together; infinite: no limit.

    Attributes
    ----------
    models
        The processes by their names.
    """

    def __init__(self, most: float = math.inf, room: float = math.inf) -> None:
        self.most = most
        self.room = room
        self.models: dict[str, Model] = {}
        self._workers: dict[str, list[Model]] = {}  # by model
        self.next_at = math.inf  # when `decide` should be called again, though nothing has happened
        self._actions: list[Action] = []

    # -- the list -----------------------------------------------------------------------------------------------------

    def add(
        self, name: str, need: int = 0, *, of: str | None = None, pinned: bool = False, idle_after: float = math.inf
    ) -> None:
        """Add a process of the model `of`, by default the model that has the process' name; or change it."""
        model = self.models.get(name)
        if model is None:
            model = self.models[name] = Model(name, of or name)
            self._workers.setdefault(model.of, []).append(model)
        if model.usual_idle != idle_after:
            model.idle_after = model.usual_idle = idle_after
        model.pinned, model.is_listed = pinned, True
        if model.state is State.UNLOADED:
            model.need, model.is_measured = need, False
        else:
            model.need = max(need, model.need)

    def fits(self, name: str, need: int = 0) -> None:
        """Note the bytes that a model will take, if they could be measured."""
        model = self.models[name]
        model.is_measured, model.is_measuring = True, False
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

    # -- requests -----------------------------------------------------------------------------------------------------

    def workers(self, of: str) -> list[Model]:
        """Return the processes of a model."""
        return self._workers[of]

    def want(self, name: str, now: float, *, idle: bool = False) -> Ticket:
        """A request for the model has arrived; an `idle` one waits until others have the model loaded."""
        model, ticket = self.models[name], Ticket(name, now, idle)
        if model.is_refused(now):
            self._actions.append(refusal(model, ticket, model.why))
            return ticket
        if model.state is State.FAILED and not idle:
            self._forgive(model)
        model.waiting[ticket] = None
        return ticket

    def move(self, ticket: Ticket, name: str) -> None:
        """Let a request that waits wait for another process of its model."""
        del self.models[ticket.name].waiting[ticket]
        ticket.name = name
        self.models[name].waiting[ticket] = None

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
            if not ticket.idle:
                model.used_at = now
                model.idle_after = model.usual_idle if keep is None else keep

    def unload(self, name: str, why: str) -> None:
        """Somebody wants the model's room back: all who wait for it are refused."""
        model = self.models[name]
        model.asked = model.asleep = model.renews = model.drains = False
        self._refuse_all(model, why)
        if model.state in (State.LOADING, State.LOADED):
            self._stop(model, kill=model.state is State.LOADING)

    def renew(self, of: str) -> None:
        """Start the model's processes anew, one after the other, each when its requests have ended."""
        for model in self.workers(of):
            model.renews = model.state is State.LOADED and not model.is_remote

    # -- processes ----------------------------------------------------------------------------------------------------

    def loaded(self, name: str, now: float, slots: float = 1) -> None:
        """The model's process serves, with this number of requests at once."""
        model = self.models[name]
        if model.state is State.LOADING:
            model.state, model.slots = State.LOADED, slots
            model.asked = model.asleep = model.drains = False
            model.loaded_at = model.used_at = now
            model.load_seconds = now - model.started_at

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
        model.is_stuck = False
        model.is_measured = False
        model.running.clear()  # their connections are closed, and each has its error
        model.renews = False
        if model.drains:
            model.asked, model.asked_at = True, now
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
        for one in self.workers(model.of):  # the others go on as they are
            one.renews = one.drains = False
        self._refuse_all(model, why)

    # -- workers elsewhere --------------------------------------------------------------------------------------------

    def came(self, name: str, of: str, now: float, slots: float) -> None:
        """A worker elsewhere serves a model; the one of that name, if there was one before."""
        model = self.models.get(name)
        if model is not None and model.of != of:
            self.forget(name)
            model = None
        if model is None:
            model = self.models[name] = Model(name, of, is_remote=True)
            self._workers.setdefault(of, []).append(model)
        model.state, model.slots, model.why = State.LOADED, slots, ""
        model.loaded_at = model.used_at = now
        model.is_stuck = False
        for one in [one for one in self.workers(of) if one.is_remote and not one.is_listed]:
            self.forget(one.name)  # it was there for its name only

    def went(self, name: str, now: float, why: str) -> None:
        """A worker elsewhere cannot be used. Its requests go on as long as their connections do."""
        model = self.models[name]
        model.state, model.failed_at, model.why = State.UNLOADED, now, why
        model.is_stuck = False
        model.running.clear()

    def forget(self, name: str) -> None:
        """A worker elsewhere is not expected any more. The last one of a model stays, as a worker of its
        model's name, so that this is known.
        """
        model = self.models.pop(name)
        others = [one for one in self.workers(model.of) if one is not model]
        if not others:
            model.name, model.is_listed = model.of, False
            self.models[model.name] = model
            for ticket in model.waiting:
                ticket.name = model.name
            return
        self._workers[model.of].remove(model)
        heir = next((one for one in others if one.state is not State.FAILED), None)
        if heir is None:
            self._refuse_all(model, model.why)
            return
        heir.waiting |= model.waiting
        for ticket in model.waiting:
            ticket.name = heir.name

    def _give_up_away(self, now: float) -> None:
        """Refuse the requests that wait for workers which are away for long."""
        for model in self.models.values():
            if model.is_remote and model.state is State.UNLOADED:
                if now < model.failed_at + AWAY_SECONDS:
                    self._again_at(model.failed_at + AWAY_SECONDS)
                else:
                    model.state, model.failed_at = State.FAILED, math.inf
                    self._refuse_all(model, model.why)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Action]:
        """Return what is to be done now, in this order."""
        self.next_at = math.inf
        self._give_up_away(now)
        self._leave_loads()
        self._forget_tries(now)
        self._try_again(now)
        for model in self.models.values():
            model.yields = False
        while self._start_next(now):
            pass
        for workers in self._workers.values():
            self._renew_next(workers)
            for model in workers:
                if model.is_open:
                    self._actions += [Admit(ticket) for ticket in model.waiting]
                    model.running |= model.waiting.keys()
                    model.waiting.clear()
            self._sleep([one for one in workers if not one.is_remote], now)
        actions, self._actions = self._actions, []
        return actions

    def _leave_loads(self) -> None:
        for model in self.models.values():
            if model.state is State.LOADING and not (model.wanted or self._is_beside(model)):
                self._stop(model, kill=True)

    def _is_beside(self, model: Model) -> bool:
        """Return whether it is to serve beside another process of its model."""
        local = (one for one in self.workers(model.of) if one is not model and not one.is_remote)
        return model.is_listed and not model.is_remote and any(one.state is State.LOADED for one in local)

    def _forget_tries(self, now: float) -> None:
        for model in self.models.values():
            is_left = not (model.wanted or self._is_beside(model))
            if is_left and model.state is State.UNLOADED and model.retry_at <= now:
                model.tries = 0

    def _try_again(self, now: float) -> None:
        """Have replicas that failed tried again, once each time: no request of theirs could, while others serve."""
        for model in self.models.values():
            if model.is_refused(now) and self._is_beside(model):
                self._again_at(model.failed_at + FAILED_SECONDS)
            elif model.state is State.FAILED and self._is_beside(model):
                model.state, model.tries, model.retry_at = State.UNLOADED, TRIES - 1, -math.inf

    def _start_next(self, now: float) -> bool:
        """Start the first in the line, or see to it that it gets room; returns whether there may be a next one."""
        others = [one for one in self.models.values() if one.takes_room]
        model = next((one for one in self._line(now) if one.wanted or self._fits(one, others)), None)
        if model is None:
            return False
        fits = self._fits(model, others)
        # Its load could fail, or need more room than its file has bytes: that is known before another one has to go.
        is_open = not model.is_measured and (self.room < math.inf or not fits)
        if is_open and not model.is_measuring:
            model.is_measuring = True
            self._actions.append(Measure(model.name))
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
            if model.state is State.UNLOADED and not model.is_remote and (model.wanted or self._is_beside(model)):
                if model.retry_at > now:
                    self._again_at(model.retry_at)
                else:
                    found.append(model)
        return iter(sorted(found, key=lambda model: model.since))

    def _fits(self, model: Model, others: list[Model]) -> bool:
        n_models = len({model.of, *(one.of for one in others)})
        return n_models <= self.most and sum(one.need for one in others) + model.need <= self.room

    def _make_room(self, model: Model, others: list[Model], now: float, *, stops: bool) -> None:
        """Choose the models that give way; with `stops` unload them as soon as none computes, and each has stayed long
        enough.
        """
        left = [one for one in others if one.state is not State.ENDING]
        chosen: list[Model] = []
        for one in sorted(left, key=self._rank):
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
        if all(one.yields and not one.is_busy for one in chosen) and stops:
            for one in chosen:
                self._stop(one, kill=False)

    def _rank(self, model: Model) -> tuple[bool, float, str, bool]:
        """Return what orders processes by how soon they give way, those of one model together."""
        workers = self.workers(model.of)
        is_busy, used_at = any(one.is_busy for one in workers), max(one.used_at for one in workers)
        return is_busy, used_at, model.of, model.is_busy

    def _too_large(self, model: Model) -> str:
        if model.need > self.room:
            return f"{model.name} takes {model.need:,} bytes, and all models together may take {self.room:,.0f}"
        return f"there is no room for {model.name} beside the models that are pinned"

    def _renew_next(self, workers: list[Model]) -> None:
        """Let the next process drain that is to be started anew, and end it as soon as it has no requests."""
        if not any(one.drains for one in workers):
            for one in [one for one in workers if one.renews and one.state is State.LOADED][:1]:
                one.drains = True
        for one in workers:
            if one.renews and one.drains and one.state is State.LOADED and not one.running:
                self._stop(one, kill=False)

    def _sleep(self, workers: list[Model], now: float) -> None:
        """Unload a model that nobody uses."""
        loaded = [one for one in workers if one.state is State.LOADED]
        if not loaded or any(one.is_busy or one.pinned or one.wanted for one in workers):
            return
        latest = max(loaded, key=lambda one: one.used_at)
        until = latest.used_at + latest.idle_after
        if now < until:
            self._again_at(until)
            return
        for one in loaded:
            one.asleep = True
            self._stop(one, kill=False)

    def _stop(self, model: Model, *, kill: bool) -> None:
        model.state = State.ENDING
        self._actions.append(Stop(model.name, kill))

    def _refuse_all(self, model: Model, why: str) -> None:
        self._actions += [refusal(model, ticket, why) for ticket in model.waiting]
        model.waiting.clear()

    def _forgive(self, model: Model) -> None:
        model.state, model.tries, model.retry_at, model.why = State.UNLOADED, 0, -math.inf, ""

    def _again_at(self, at: float) -> None:
        self.next_at = min(self.next_at, at)


def refusal(model: Model, ticket: Ticket, why: str) -> Refuse:
    return Refuse(ticket, why, "worker_unreached") if model.is_remote else Refuse(ticket, why)
