"""The rules of `pyllmcancel/cluster/haproxy.cfg`, as one process of HAProxy applies them to request after request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.fleet_simulation.tables import NOWHERE, Entry, StickTable

K = 1_024  # of a table's size, as HAProxy reads it
HOUR = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Those of `pyllmcancel.cluster.haproxy.Settings` that decide, and what the configuration has of numbers.

    Attributes
    ----------
    counters
        Names of a request that are noted: 3 by HAProxy 2.6, 4 by 2.8.
    """

    slots: int = 4
    load_factor: int = 150
    settle: float = HOUR
    paired: bool = False
    counters: int = 3
    size: int = 200 * K
    expire_requests: float = HOUR
    expire: float = 12 * HOUR


class Names(NamedTuple):
    """The names in a request that generates, as digests."""

    id: str
    key: str | None = None
    parent: str | None = None
    session: str | None = None

    @property
    def hashed(self) -> str:
        return self.parent or self.session or self.key or self.id


class Choice(NamedTuple):
    """Where a request goes, and which of its names stay where they are. `NOWHERE`: no replica is up."""

    at: int
    id: bool = False
    key: bool = False
    parent: bool = False
    session: bool = False


class Held:
    """The entries of a live request in the balancer: entries, each with its table. `noted` are those that it
    changed.
    """

    __slots__ = ("entries", "noted", "server")

    def __init__(self, server: int) -> None:
        self.server = server
        self.entries: list[tuple[StickTable, Entry]] = []
        self.noted: list[tuple[StickTable, Entry]] = []


class Process:
    """HAProxy from its start to its end.

    Parameters
    ----------
    ranking
        A name's replicas, the highest hash first. It may have replicas that this process does not.
    n_replicas
        The number of replicas, from the first on, that are configured. `up`, `open` (a weight of more than 0) and
        `connections` are by index.
    """

    def __init__(
        self, settings: Settings, ranking: Callable[[str], Iterable[int]], n_replicas: int, began: float = 0.0
    ) -> None:
        self.settings = settings
        self.began = began
        self.up = [True] * n_replicas
        self.open = [True] * n_replicas
        self.connections = [0] * n_replicas
        self.n_connections = 0
        self.n_usable = n_replicas
        self.requests = StickTable(settings.size, settings.expire_requests)
        self.keys = StickTable(settings.size, settings.expire)
        self.sessions = StickTable(settings.size, settings.expire)
        self._ranking = ranking

    # -- replicas -----------------------------------------------------------------------------------------------------

    def mark(self, replica: int, *, up: bool | None = None, is_open: bool | None = None) -> None:
        """Note the result of the checks, or an administrator's command."""
        before = self.up[replica] and self.open[replica]
        self.up[replica] = self.up[replica] if up is None else up
        self.open[replica] = self.open[replica] if is_open is None else is_open
        self.n_usable += (self.up[replica] and self.open[replica]) - before

    def successor(self, n_replicas: int, now: float, tables: Process | None) -> Process:
        """A process that begins now, with the notes of another one, or none."""
        new = Process(self.settings, self._ranking, n_replicas, now)
        if tables is not None:
            new.requests, new.keys = tables.requests.taught(now), tables.keys.taught(now)
            new.sessions = tables.sessions.taught(now)
        for replica in range(min(n_replicas, len(self.up))):
            new.mark(replica, up=self.up[replica])  # the checks of a new process see it, too; weights are as written
        return new

    def expire(self, now: float) -> None:
        """Forget what nobody has asked for in so long."""
        for table in (self.requests, self.keys, self.sessions):
            table.expire(now)

    # -- one request --------------------------------------------------------------------------------------------------

    @property
    def room(self) -> float:
        """Connections with which a replica is full."""
        if self.n_usable == 0:
            return float("inf")
        wanted = (self.n_connections + 1) * self.settings.load_factor // 100 // self.n_usable + 1
        return max(wanted, self.settings.slots)

    def choose(self, names: Names, now: float) -> Choice:
        room = self.room
        settled = not self.settings.paired and now - self.began >= self.settings.settle

        def stays(table: StickTable, name: str | None) -> int:
            if name is None or (entry := table.entries.get(name)) is None:
                return NOWHERE
            if (at := entry.at) == NOWHERE or at >= len(self.up) or not self.up[at]:
                return NOWHERE
            if entry.live or not settled or (self.open[at] and self.connections[at] < room):
                return at
            return NOWHERE

        session, parent = stays(self.sessions, names.session), stays(self.sessions, names.parent)
        key = stays(self.keys, names.key)
        by_id = self.requests.at(names.id)
        if by_id >= len(self.up) or not self.up[by_id]:
            by_id = NOWHERE
        at = next((one for one in (by_id, key, parent, session) if one != NOWHERE), NOWHERE)
        if at == NOWHERE:
            nameless = names.hashed == names.id
            at = self.hashed(names.hashed, (self.settings.slots, room) if nameless else (room,))
        return Choice(at, by_id != NOWHERE, key != NOWHERE, parent != NOWHERE, session != NOWHERE)

    def hashed(self, name: str, rooms: Sequence[float]) -> int:
        """The first one with room, by the first of `rooms` that any has; if none has, the first one that is up."""
        usable = [one for one in self._ranking(name) if one < len(self.up) and self.up[one]]
        with_room = (one for room in rooms for one in usable if self.open[one] and self.connections[one] < room)
        return next(with_room, next(iter(usable), NOWHERE))

    def begin(self, names: Names, choice: Choice, now: float) -> Held:
        """Note it, and count it as live."""
        noted = [(self.requests, names.id, choice.id), (self.keys, names.key, choice.key)]
        if names.key is None or self.settings.counters > 3:
            noted.append((self.sessions, names.parent, choice.parent))
        noted.append((self.sessions, names.session, choice.session))
        held = Held(choice.at)
        for table, name, stays in noted:
            if name is not None and (entry := table.enter(name, now)) is not None:
                entry.live += 1
                held.entries.append((table, entry))
                if not stays:
                    if name is names.session and entry.at != NOWHERE:
                        entry.moves += 1
                    entry.at = choice.at
                    held.noted.append((table, entry))
        self.connections[choice.at] += 1
        self.n_connections += 1
        return held

    def learn(self, told: Process, said: Iterable[tuple[StickTable, str, int]], now: float) -> None:
        """Take over another process's note: its table, the name, and where that is."""
        for table, name, at in said:
            mine = self.keys if table is told.keys else self.sessions if table is told.sessions else None
            if mine is not None and (entry := mine.enter(name, now)) is not None:
                entry.at = at

    def sent_again(self, held: Held, to: int) -> None:
        """The connection was refused, and another one had the request."""
        self.connections[held.server] -= 1
        self.connections[to] += 1
        held.server = to

    def answered(self, held: Held) -> None:
        """The headers of its answer came: the names are there now."""
        held.noted = held.entries
        for _, entry in held.entries:
            entry.at = held.server

    def end(self, held: Held, now: float) -> None:
        for table, entry in held.entries:
            entry.live -= 1
            table.touch(entry, now)
        self.connections[held.server] -= 1
        self.n_connections -= 1

    def least(self, usable: Sequence[int]) -> int:
        """Where `balance leastconn` sends what is sent again; of equals it may take another one."""
        return min(usable, key=self.connections.__getitem__)
