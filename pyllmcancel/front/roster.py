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
from dataclasses import dataclass

from pyllmcancel.front.replica import AWAY_SECONDS, FAILED_SECONDS, Claim, Replica, State, Ticket

TRIES = 3  # starts in a row that may fail
FIRST_PAUSE = 0.5  # seconds before the second start; then twice as long each time
LONG_LIFE = 60.0  # seconds of service after which the tries are counted anew


@dataclass(frozen=True, slots=True)
class Start:
    """Start the model's process."""

    name: str


@dataclass(frozen=True, slots=True)
class Measure:
    """Find out what the model will take, without loading it; report it to `Replica.fits` or `Roster.unfit`."""

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


Action = Start | Measure | Stop | Admit | Refuse


class Roster:
    """All models, and the room for them. Each event is a method, of the roster, or of the process or the request that
    it concerns; after some, `decide` says what is to be done.

    At most `most` models are loaded at once, which take `room` bytes together; infinite: no limit.
    """

    def __init__(self, most: float = math.inf, room: float = math.inf) -> None:
        self.most = most
        self.room = room
        self.replicas: dict[str, Replica] = {}  # the processes by their names
        self._workers: dict[str, list[Replica]] = {}  # by model
        self.next_at = math.inf  # when `decide` should be called again, though nothing has happened
        self._actions: list[Action] = []

    # -- the list -----------------------------------------------------------------------------------------------------

    def add(
        self, name: str, need: int = 0, *, of: str | None = None, pinned: bool = False, idle_after: float = math.inf
    ) -> None:
        """Add a process of the model `of`, by default the model that has the process' name; or change it."""
        replica = self.replicas.get(name)
        if replica is None:
            replica = self.replicas[name] = Replica(name, of or name)
            self._workers.setdefault(replica.of, []).append(replica)
        if replica.usual_idle != idle_after:
            replica.idle_after = replica.usual_idle = idle_after
        replica.pinned, replica.is_listed = pinned, True
        if replica.state is State.UNLOADED:
            replica.need, replica.is_measured = need, False
        else:
            replica.need = max(need, replica.need)

    def unfit(self, replica: Replica, why: str, now: float) -> None:
        """The model cannot be loaded: no other one has to make room for it."""
        replica.is_measuring = False
        if replica.state is State.UNLOADED and replica.wanted:
            self.failed(replica, now, why)

    # -- requests -----------------------------------------------------------------------------------------------------

    def workers(self, of: str) -> list[Replica]:
        """Return the processes of a model."""
        return self._workers[of]

    def is_coming(self, of: str) -> bool:
        """Return whether a model that does not serve yet is about to."""
        states = {one.state for one in self.workers(of)}
        return State.LOADED not in states and (State.LOADING in states or any(one.wanted for one in self.workers(of)))

    def want(self, replica: Replica, now: float, claim: Claim) -> Ticket:
        """A request for the model has arrived; an idle one waits until others have the model loaded."""
        ticket = Ticket(replica, now, claim)
        if replica.is_refused(now):
            self._actions.append(Refuse(ticket, replica.why))
            return ticket
        if replica.state is State.FAILED and not claim.idle:
            replica.forgive()
        replica.waiting[ticket] = None
        return ticket

    def unload(self, replica: Replica, why: str) -> None:
        """Somebody wants the model's room back: all who wait for it are refused."""
        replica.asked_at, replica.asleep, replica.renews, replica.drains = math.inf, False, False, False
        self._refuse_all(replica, why)
        if replica.state in (State.LOADING, State.LOADED):
            self._stop(replica, kill=replica.state is State.LOADING)

    def renew(self, of: str) -> None:
        """Start the model's processes anew, one after the other, each when its requests have ended."""
        for replica in self.workers(of):
            replica.renews = replica.state is State.LOADED and not replica.is_remote

    # -- processes ----------------------------------------------------------------------------------------------------

    def ended(self, replica: Replica, now: float, why: str = "", *, hopeless: bool = False) -> None:
        """The process has ended, for the reason `why` if nobody asked for it; `hopeless` if another one would, too."""
        state, replica.state = replica.state, State.UNLOADED
        replica.is_measured = False
        replica.running.clear()  # their connections are closed, and each has its error
        replica.renews = False
        if replica.drains or state is State.LOADED:
            replica.asked_at = now  # it is to come back, even if nobody waits
        if state is State.ENDING:
            return
        if state is State.LOADED and now - replica.loaded_at > LONG_LIFE:
            replica.tries = 0
        replica.tries += 1
        replica.why = why
        if hopeless or replica.tries >= TRIES:
            self.failed(replica, now, why)
        else:
            replica.retry_at = now + FIRST_PAUSE * 2 ** (replica.tries - 1)

    def failed(self, replica: Replica, now: float, why: str) -> None:
        """The model, which has no process, cannot be loaded."""
        replica.state, replica.failed_at, replica.asked_at, replica.why = State.FAILED, now, math.inf, why
        for one in self.workers(replica.of):  # the others go on as they are
            one.renews = one.drains = False
        self._refuse_all(replica, why)

    # -- workers elsewhere --------------------------------------------------------------------------------------------

    def came(self, name: str, of: str, now: float, slots: int) -> None:
        """A worker elsewhere serves a model; the one of that name, if there was one before."""
        replica = self.replicas.get(name)
        if replica is not None and replica.of != of:
            self.forget(replica)
            replica = None
        if replica is None:
            replica = self.replicas[name] = Replica(name, of, is_remote=True)
            self._workers.setdefault(of, []).append(replica)
        replica.state, replica.slots, replica.why = State.LOADED, slots, ""
        replica.loaded_at = replica.used_at = now
        for one in [one for one in self.workers(of) if one.is_remote and not one.is_listed]:
            self.forget(one)  # it was there for its name only

    def forget(self, replica: Replica) -> None:
        """A worker elsewhere is not expected any more. The last one stays, under its model's name: that is known."""
        del self.replicas[replica.name]
        others = [one for one in self.workers(replica.of) if one is not replica]
        if not others:
            replica.name, replica.is_listed = replica.of, False
            self.replicas[replica.name] = replica
            return
        self._workers[replica.of].remove(replica)
        heir = next((one for one in others if one.state is not State.FAILED), None)
        if heir is None:
            self._refuse_all(replica, replica.why)
            return
        heir.waiting |= replica.waiting
        for ticket in replica.waiting:
            ticket.replica = heir

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[Action]:
        """Return what is to be done now, in this order."""
        self.next_at = math.inf
        for replica in self.replicas.values():
            self._look_at(replica, now)
            replica.yields = False
        while self._start_next(now):
            pass
        for workers in self._workers.values():
            self._renew_next(workers)
            for replica in workers:
                if replica.is_open:
                    self._actions += [Admit(ticket) for ticket in replica.waiting]
                    replica.running |= replica.waiting.keys()
                    replica.waiting.clear()
            self._sleep([one for one in workers if not one.is_remote], now)
        actions, self._actions = self._actions, []
        return actions

    def _look_at(self, replica: Replica, now: float) -> None:
        """Do what no event has done: end a load that nobody waits for, fail a worker that stays away, try one again."""
        is_beside = self._is_beside(replica)
        is_left = not (replica.wanted or is_beside)
        match replica.state:
            case State.LOADING if is_left:
                self._stop(replica, kill=True)
            case State.UNLOADED if replica.is_remote:  # it is away: requests wait for it, but not for long
                if now < replica.failed_at + AWAY_SECONDS:
                    self._again_at(replica.failed_at + AWAY_SECONDS)
                else:
                    replica.state, replica.failed_at = State.FAILED, math.inf
                    self._refuse_all(replica, replica.why)
            case State.UNLOADED if is_left and replica.retry_at <= now:
                replica.tries = 0
            case State.FAILED if is_beside:  # tried again, once each time: no request has it tried, while others serve
                if replica.is_refused(now):
                    self._again_at(replica.failed_at + FAILED_SECONDS)
                else:
                    replica.state, replica.tries, replica.retry_at = State.UNLOADED, TRIES - 1, -math.inf

    def _is_beside(self, replica: Replica) -> bool:
        """Return whether it is to serve beside another process of its model."""
        local = (one for one in self.workers(replica.of) if one is not replica and not one.is_remote)
        return replica.is_listed and not replica.is_remote and any(one.state is State.LOADED for one in local)

    def _start_next(self, now: float) -> bool:
        """Start the first in the line, or see to it that it gets room; returns whether there may be a next one."""
        others = [one for one in self.replicas.values() if one.takes_room]
        replica = next((one for one in self._line(now) if one.wanted or self._fits(one, others)), None)
        if replica is None:
            return False
        fits = self._fits(replica, others)
        # Its load could fail, or need more room than its file has bytes: that is known before another one has to go.
        is_open = not replica.is_measured and (self.room < math.inf or not fits)
        if is_open and not replica.is_measuring:
            replica.is_measuring = True
            self._actions.append(Measure(replica.name))
        if not fits:
            if self._fits(replica, [one for one in others if one.pinned]):
                self._make_room(replica, others, now, stops=not is_open)
                return False
            replica.asked_at = math.inf
            self._refuse_all(replica, self._too_large(replica))
            return True
        if is_open:
            return False
        replica.state, replica.started_at = State.LOADING, now
        self._actions.append(Start(replica.name))
        return True

    def _line(self, now: float) -> list[Replica]:
        found = []
        for replica in self.replicas.values():
            is_in_line = replica.state is State.UNLOADED and not replica.is_remote
            if is_in_line and (replica.wanted or self._is_beside(replica)):
                if replica.retry_at > now:
                    self._again_at(replica.retry_at)
                else:
                    found.append(replica)
        return sorted(found, key=lambda replica: replica.since)

    def _fits(self, replica: Replica, others: list[Replica]) -> bool:
        n_models = len({replica.of, *(one.of for one in others)})
        return n_models <= self.most and sum(one.need for one in others) + replica.need <= self.room

    def _make_room(self, replica: Replica, others: list[Replica], now: float, *, stops: bool) -> None:
        """Choose the models that give way; with `stops` unload them once none computes and all stayed long enough."""
        left = [one for one in others if one.state is not State.ENDING]
        chosen: list[Replica] = []
        for one in sorted(left, key=self._rank):
            if self._fits(replica, left):
                break
            if one.state is State.LOADED and not one.pinned:
                left = [other for other in left if other is not one]
                chosen.append(one)
        if not chosen or not self._fits(replica, left):
            return  # others are ending, or loading, and come first
        for one in chosen:
            one.yields = now >= one.stays_until
            if not one.yields:
                self._again_at(one.stays_until)
        if all(one.yields and not one.is_busy for one in chosen) and stops:
            for one in chosen:
                self._stop(one, kill=False)

    def _rank(self, replica: Replica) -> tuple[bool, float, str, bool]:
        """Return what orders processes by how soon they give way, those of one model together."""
        workers = self.workers(replica.of)
        is_busy, used_at = any(one.is_busy for one in workers), max(one.used_at for one in workers)
        return is_busy, used_at, replica.of, replica.is_busy

    def _too_large(self, replica: Replica) -> str:
        if replica.need > self.room:
            return f"{replica.name} takes {replica.need:,} bytes, and all models together may take {self.room:,.0f}"
        return f"there is no room for {replica.name} beside the models that are pinned"

    def _renew_next(self, workers: list[Replica]) -> None:
        """Let the next process drain that is to be started anew, and end it as soon as it has no requests."""
        if not any(one.drains for one in workers):
            for one in [one for one in workers if one.renews and one.state is State.LOADED][:1]:
                one.drains = True
        for one in workers:
            if one.renews and one.drains and one.state is State.LOADED and not one.running:
                self._stop(one, kill=False)

    def _sleep(self, workers: list[Replica], now: float) -> None:
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

    def _stop(self, replica: Replica, *, kill: bool) -> None:
        replica.state = State.ENDING
        self._actions.append(Stop(replica.name, kill))

    def _refuse_all(self, replica: Replica, why: str) -> None:
        self._actions += [Refuse(ticket, why) for ticket in replica.waiting]
        replica.waiting.clear()

    def _again_at(self, at: float) -> None:
        self.next_at = min(self.next_at, at)
