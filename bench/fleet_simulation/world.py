"""Replicas, balancers and live requests through time."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count

from bench.fleet_simulation.counts import Counts
from bench.fleet_simulation.rules import Choice, Held, Names, Process, Settings
from bench.fleet_simulation.tables import NOWHERE, StickTable
from bench.fleet_simulation.workload import Arrival

MEDIAN_DELAY, LONGEST_DELAY = 0.0005, 0.0056  # seconds until another balancer has a note: docs/measured/scale-out.md
LATE = 10.0  # seconds before the end
EXPIRY_EVERY = 60.0


class Live:
    """A request that computes at a replica, or waits there."""

    __slots__ = ("arrival", "ends", "held", "moved_on", "over", "process")

    def __init__(self, arrival: Arrival, process: Process, held: Held, ends: float) -> None:
        self.arrival = arrival
        self.process = process
        self.held = held
        self.ends = ends
        self.over = False
        self.moved_on = False  # it was sent again, and no note says so yet


class World:
    """Plays arrivals and actions in the order of time.

    Parameters
    ----------
    names
        The digest of each session. For the first `n_typing` also that of its key, which is in another table.
    ranking
        Of all replicas that ever exist. `n_replicas` of them are there at the beginning.
    """

    def __init__(
        self,
        settings: Settings,
        names: Sequence[str],
        ranking: Callable[[str], Iterable[int]],
        n_replicas: int,
        *,
        n_typing: int,
        seed: int,
        balancers: int = 1,
        began: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.counts = Counts()
        self.chance = random.Random(seed)
        self.balancers = [Process(settings, ranking, n_replicas, began) for _ in range(balancers)]
        self.dead = set[int]()
        self.hanging = dict[int, float]()  # and until when
        self.on: defaultdict[int, set[Live]] = defaultdict(set)  # by replica
        self._names = names
        self._n_typing = n_typing
        self._last = [NOWHERE] * len(names)  # where its last request went
        self._newest: list[Live | None] = [None] * len(names)  # of its key
        self._queue: list[tuple[float, int, Live | Callable[[], None]]] = []
        self._turn = count()

    def used_before(self) -> None:
        """Each session has been used, when there was room everywhere."""
        for session, name in enumerate(self._names):
            at = self._last[session] = self.balancers[0].hashed(name, (float("inf"),))
            for process in self.balancers:
                for table in (process.keys, process.sessions) if session < self._n_typing else (process.sessions,):
                    if (entry := table.enter(name, 0.0)) is not None:
                        entry.at = at

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, when: float, act: Live | Callable[[], None]) -> None:
        heappush(self._queue, (when, next(self._turn), act))

    def run(self, arrivals: Sequence[Arrival], until: float) -> Counts:
        self.at(EXPIRY_EVERY, self._expire)
        for number, arrival in enumerate(arrivals):
            self._catch_up(arrival.at)
            self._arrive(arrival, str(number), late=arrival.at > until - LATE)
        self._catch_up(until)
        self._look_back()
        return self.counts

    def _expire(self) -> None:
        for process in self.balancers:
            process.expire(self.now)
        self.at(self.now + EXPIRY_EVERY, self._expire)

    def _catch_up(self, now: float) -> None:
        queue = self._queue
        while queue and queue[0][0] <= now:
            self.now, _, act = heappop(queue)
            if not isinstance(act, Live):
                act()
            elif not act.over:
                if act.ends > self.now:  # its replica hung meanwhile
                    self.at(act.ends, act)
                else:
                    self.end(act)
        self.now = now

    # -- requests -----------------------------------------------------------------------------------------------------

    def _names_of(self, session: int, number: str, *, typed: bool) -> Names:
        name = self._names[session]
        return Names(number, name if typed else None, None, name)

    def _arrive(self, arrival: Arrival, number: str, *, late: bool) -> None:
        counts, session = self.counts, arrival.session
        process = self.balancers[0] if len(self.balancers) == 1 else self.chance.choice(self.balancers)
        names = self._names_of(session, number, typed=arrival.typed)
        counts.requests += 1
        choice = process.choose(names, self.now)
        if choice.at == NOWHERE:
            counts.refused += 1
            return
        reason = self._why_moved(process, session, choice)
        live = Live(arrival, process, process.begin(names, choice, self.now), self.now + arrival.takes)
        if choice.at in self.dead:
            reason = "down"
            self._send_again(live)
        at = live.held.server
        if reason is not None and at != self._last[session]:
            counts.moved[reason] += 1
            counts.movers.add(session)
        self._last[session] = at
        if not process.open[at]:
            counts.on_drained += 1
            counts.late_on_drained += late
        if at in self.hanging:
            live.ends += self.hanging[at] - self.now
        if live.held.noted and len(self.balancers) > 1:
            self._tell_others(live)
        self.on[at].add(live)
        self.at(live.ends, live)
        if arrival.typed:
            self._supersede(live, reason or "first")

    def _supersede(self, live: Live, reason: str) -> None:
        older = self._newest[live.arrival.session]
        self._newest[live.arrival.session] = live
        if older is None or older.over:
            return
        self.counts.superseding += 1
        if older.held.server == live.held.server:
            self.end(older)
        else:
            self.counts.missed[reason] += 1
            self.counts.lived_on += older.ends - self.now

    def _send_again(self, live: Live) -> None:
        """The connection is refused, which marks the replica, and another one has the request."""
        process, refused = live.process, live.held.server
        process.mark(refused, up=False)
        usable = [i for i, up in enumerate(process.up) if up and process.open[i] and i not in self.dead]
        process.sent_again(live.held, process.least(usable))
        self.counts.sent_again += 1
        if live.arrival.streams:
            process.answered(live.held)
        else:
            live.moved_on = True

    def end(self, live: Live) -> None:
        """It is answered, superseded or cut."""
        live.over = True
        self.on[live.held.server].discard(live)
        if live.moved_on:
            live.process.answered(live.held)
            self._tell_others(live)
        live.process.end(live.held, self.now)

    def cut(self, live: Live) -> None:
        """Its replica or its balancer has died."""
        self.counts.cut += 1
        live.moved_on = False
        self.end(live)

    def _tell_others(self, live: Live) -> None:
        process = live.process
        said = [(table, entry.name, entry.at) for table, entry in live.held.noted]
        for other in self.balancers:
            if other is not process:
                delay = min(self.chance.expovariate(1 / MEDIAN_DELAY), LONGEST_DELAY)
                self.at(self.now + delay, partial(self._hear, other, process, said))

    def _hear(self, process: Process, told: Process, said: list[tuple[StickTable, str, int]]) -> None:
        process.learn(told, said, self.now)

    # -- looking ------------------------------------------------------------------------------------------------------

    def _why_moved(self, process: Process, session: int, choice: Choice) -> str | None:
        last = self._last[session]
        if last in (NOWHERE, choice.at):
            return None
        if last in self.dead or not process.up[last]:
            return "down"
        older = self._newest[session]
        if older is not None and not older.over and older.moved_on:
            return "sent again"
        name = self._names[session]
        entry = process.sessions.entries.get(name)
        if entry is None or entry.at == NOWHERE:
            return "overflow" if name in process.sessions.evicted else "no note"
        if entry.at != last or choice.session:
            return "followed"  # its key, or what another request of it did
        return "load" if process.open[last] else "drain"

    def _look_back(self) -> None:
        process, counts = self.balancers[0], self.counts
        for session, last in enumerate(self._last):
            if last != NOWHERE and last not in self.dead:
                choice = process.choose(self._names_of(session, "", typed=session < self._n_typing), self.now)
                counts.would_move += choice.at != last
        for one in self.balancers:
            counts.ids_forgotten += len(one.requests.evicted)
            counts.names_forgotten += len(one.keys.evicted) + len(one.sessions.evicted)
            counts.not_noted += one.requests.refused + one.keys.refused + one.sessions.refused
