"""Which process of a model gets a request: the one that has its names, or else the one with the least work.

A live name counts most: a newer request of a supersede key, or of a session, goes where the older ones are. A name that
is not live any more goes back to the process that may still have its prefix, unless it would wait there while another
process has a free slot.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.front.model import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyllmcancel.front.model import Model, Ticket
    from pyllmcancel.requests.request import Names

MAX_NAMES = 4_096  # of an owner that are remembered
COMES = (State.LOADED, State.LOADING, State.UNLOADED, State.ENDING, State.FAILED)  # the sooner a process serves
ID, KEY, SESSION = "id", "key", "session"
Name = tuple[str, str]  # its kind, and the name itself


class Claim(NamedTuple):
    """The facts that decide the place of a request.

    Attributes
    ----------
    names
        The first one counts most.
    weight
        The bytes of its body, which stand for its tokens: nobody in front counts those.
    avoids
        The processes that did not take it.
    """

    model: str
    owner: str = ""
    names: tuple[Name, ...] = ()
    weight: int = 0
    avoids: frozenset[str] = frozenset()


def names_of(request_id: str, names: Names, streams: Sequence[str]) -> tuple[Name, ...]:
    """Return the names that decide the place of a request. An id is one: the process finds that it is in use."""
    found = [(ID, request_id), (KEY, names.supersede), *((ID, one) for one in streams)]
    found += [(SESSION, names.parent), (SESSION, names.session)]
    return tuple(dict.fromkeys((kind, name) for kind, name in found if name is not None))


Key = tuple[str, str, Name]  # the model, the owner, and the name


@dataclass(slots=True)
class Live:
    """A name of live requests: where the newest one went, and how many there are."""

    worker: str
    n: int = 0


class Places:
    """Where names are. Used in the event loop only.

    Parameters
    ----------
    most
        The limit of an owner's names that are remembered after their requests.
    """

    def __init__(self, most: int = MAX_NAMES) -> None:
        self._most = most
        self._live: dict[Key, Live] = {}
        self._idle = defaultdict[str, OrderedDict[Key, str]](OrderedDict)  # by owner, the least recently used first
        self._claims: dict[Ticket, tuple[Claim, str]] = {}  # and where it went
        self._weights = Counter[str]()  # of each process' live requests

    def choose(self, workers: Sequence[Model], claim: Claim) -> Model:
        """Return the process for a request, or, if none takes requests, the one that is likely to be the first."""
        takers = {one.name: one for one in workers if one.is_open}
        ready = {name: one for name, one in takers.items() if not (one.is_stuck or name in claim.avoids)} or takers
        if not ready:
            return min(workers, key=lambda one: COMES.index(one.state))
        if len(ready) > 1:
            keys = keys_of(claim)
            for live in (self._live[key] for key in keys if key in self._live):
                if live.worker in ready:
                    return ready[live.worker]
            known: Mapping[Key, str] = self._idle.get(claim.owner, {})
            is_full = all(len(one.running) >= one.slots for one in ready.values())
            for one in (ready.get(known[key]) for key in keys if key in known):
                if one is not None and (is_full or len(one.running) < one.slots):
                    return one
        return min(ready.values(), key=self._work)

    def _work(self, one: Model) -> tuple[float, int, int, float]:
        """Return how much a process has to do; of two without work the one that was used earlier comes first."""
        return min(len(one.running), one.slots), self._weights[one.name], len(one.running), one.used_at

    def note(self, ticket: Ticket, claim: Claim) -> None:
        """The request goes, or waits, where its ticket says."""
        self.drop(ticket)
        self._claims[ticket] = claim, ticket.name
        self._weights[ticket.name] += claim.weight
        for key in keys_of(claim):
            live = self._live.setdefault(key, Live(ticket.name))
            live.worker, live.n = ticket.name, live.n + 1

    def claim_of(self, ticket: Ticket) -> Claim:
        return self._claims[ticket][0]

    def drop(self, ticket: Ticket) -> None:
        """The request has ended, or goes elsewhere. Idempotent."""
        noted = self._claims.pop(ticket, None)
        if noted is None:
            return
        claim, worker = noted
        self._weights[worker] -= claim.weight
        for key in keys_of(claim):
            live = self._live[key]
            live.n -= 1
            if not live.n:
                del self._live[key]
                self._remember(claim.owner, key, live.worker)

    def _remember(self, owner: str, key: Key, worker: str) -> None:
        _, _, (kind, _) = key
        if kind != ID:
            known = self._idle[owner]
            known[key] = worker
            known.move_to_end(key)
            if len(known) > self._most:
                known.popitem(last=False)


def keys_of(claim: Claim) -> list[Key]:
    return [(claim.model, claim.owner, name) for name in claim.names]
