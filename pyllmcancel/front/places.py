"""Which process of a model gets a request: the one that has its names, or else the one with the least work.

A live name counts most: a newer request of a supersede key, or of a session, goes where the older ones are. A name that
is not live any more goes back to the process that may still have its prefix, unless it would wait there while another
process has a free slot.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyllmcancel.front.replica import Claim, Name, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel.front.replica import Replica, Ticket
    from pyllmcancel.front.requests import FrontRequest

MAX_NAMES = 4_096  # of an owner that are remembered
COMES = (State.LOADED, State.LOADING, State.UNLOADED, State.ENDING, State.FAILED)  # the sooner a process serves
ID, KEY, SESSION = "id", "key", "session"
Key = tuple[str, Name]  # the model, and the name


def names_of(request: FrontRequest) -> tuple[Name, ...]:
    """Return the names that decide the place of a request. An id is one: the process finds that it is in use."""
    stream = None if request.keeping is None else request.keeping.name
    found = [(ID, request.id), (KEY, request.supersede), (ID, stream)]
    if not request.spreads:
        found += [(SESSION, request.parent), (SESSION, request.session)]
    return tuple(dict.fromkeys((kind, name) for kind, name in found if name is not None))


@dataclass(slots=True)
class Seat:
    """The process to which the newest request of a name went, and the number of live requests of that name."""

    worker: str
    n: int = 0


class Places:
    """Where names are: at most `most` of an owner are remembered after their requests. Used in the event loop only."""

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._most = most
        self._seats = defaultdict[str, OrderedDict[Key, Seat]](OrderedDict)  # by owner, the least recently used first

    def choose(self, workers: Sequence[Replica], claim: Claim) -> Replica:
        """Return the process for a request, or, if none takes requests, the one that is likely to be the first."""
        takers = {one.name: one for one in workers if one.is_open}
        ready = {name: one for name, one in takers.items() if not (one.is_stuck or name in claim.avoids)} or takers
        if not ready:
            return min(workers, key=lambda one: COMES.index(one.state))
        known = self._seats[claim.owner]
        seats = [seat for key in keys_of(claim) if (seat := known.get(key)) is not None and seat.worker in ready]
        is_full = all(len(one.running) >= one.slots for one in ready.values())
        for seat in sorted(seats, key=lambda one: not one.n):  # live ones first
            one = ready[seat.worker]
            if seat.n or is_full or len(one.running) < one.slots:
                return one
        return min(ready.values(), key=self._work)

    @staticmethod
    def _work(one: Replica) -> tuple[float, int, int, float]:
        """Return how much a process has to do; of two without work the one that was used earlier comes first."""
        weight = sum(ticket.claim.weight for ticket in (*one.running, *one.waiting))
        return min(len(one.running), one.slots), weight, len(one.running), one.used_at

    def note(self, ticket: Ticket) -> None:
        """The request goes, or waits, where its ticket says."""
        self.drop(ticket)
        ticket.is_noted, name = True, ticket.replica.name
        known = self._seats[ticket.claim.owner]
        for key in keys_of(ticket.claim):
            seat = known.setdefault(key, Seat(name))
            seat.worker, seat.n = name, seat.n + 1

    def drop(self, ticket: Ticket) -> None:
        """The request has ended, or goes elsewhere. Idempotent."""
        if not ticket.is_noted:
            return
        ticket.is_noted = False
        known = self._seats[ticket.claim.owner]
        for key in keys_of(ticket.claim):
            seat = known[key]
            seat.n -= 1
            known.move_to_end(key)
            oldest = next((one for one, its in known.items() if not its.n), None) if len(known) > self._most else None
            if not seat.n and key[1][0] == ID:
                del known[key]
            elif oldest is not None:
                del known[oldest]


def keys_of(claim: Claim) -> list[Key]:
    return [(claim.model, name) for name in claim.names]
