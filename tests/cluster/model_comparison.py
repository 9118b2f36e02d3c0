"""A real HAProxy beside the model of `bench.fleet_simulation`: each request is predicted, sent, and compared."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from bench.fleet_simulation.hashing import Ranking, digest
from bench.fleet_simulation.rules import Held, K, Names, Process, Settings
from pyllmcancel.cluster.haproxy import Program
from pyllmcancel.cluster.places import Peer, Replica
from tests.support.balancer import Balancer
from tests.support.http_process import COMPLETIONS, LIMIT, until
from tests.support.proxies import free_port
from tests.support.stub_replicas import HELD, StubReplicas

SLOTS, FACTOR = 2, 120
HEADERS = {"id": "X-Request-Id", "key": "X-Supersede", "parent": "X-Parent-Session-Id", "session": "X-Session-Id"}


@dataclass(slots=True)
class Live:
    client: HTTPConnection
    held: Held


class BesideModel(AbstractContextManager["BesideModel"]):
    """Before `n` stub replicas, of which the first `n_configured` are in the configuration.

    Attributes
    ----------
    predicted
        Requests so far whose replica was known beforehand.
    """

    def __init__(
        self,
        program: Program,
        folder: Path,
        *,
        n: int,
        n_configured: int,
        settle: int = 0,
        paired: bool = False,
        size: int = 200 * K,
    ) -> None:
        self.predicted = 0
        self.live: list[Live] = []
        self._n_sent = 0
        with ExitStack() as stack:
            self._stubs = stack.enter_context(StubReplicas(n))
            # The other of two is away, which changes nothing of what this one decides.
            names = "ab" if paired else "a"
            peers = tuple(Peer(name, f"127.0.0.1:{free_port()}") for name in names)
            options: dict[str, Any] = {"slots": SLOTS, "load_factor": FACTOR, "settle": settle}
            options["edited"] = lambda text: text.replace(" size 200k ", f" size {size} ")
            self._balancer = stack.enter_context(
                Balancer(self._servers(n_configured), folder, peers=peers, here="a", **options)
            )
            self._client = self._connect()
            stack.callback(self._client.close)
            stack.callback(self.release_all)
            self._closing = stack.pop_all()
        self.model = Process(
            Settings(
                slots=SLOTS,
                load_factor=FACTOR,
                settle=settle,
                paired=paired,
                size=size,
                counters=4 if program.version >= (2, 8) else 3,
            ),
            Ranking([Replica(f"r{i + 1}", "") for i in range(n)]),
            n_configured,
        )

    def _servers(self, n: int) -> Any:
        return self._stubs.all[:n]  # of a server the balancer wants the port only

    def _connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self._balancer.port, timeout=LIMIT)

    # -- requests -----------------------------------------------------------------------------------------------------

    def send(self, *, held: bool = False, dead: int | None = None, **said: str) -> int:
        """Send what names this, see that it goes where the model has it, and say where that is.

        `dead` is a replica of which the balancer has not noticed that it is dead: what is for it may go to any other.
        """
        self._n_sent += 1
        said = {"id": f"request {self._n_sent}"} | said
        names = Names(**{kind: digest(name) for kind, name in said.items()})
        choice = self.model.choose(names, 0.0)
        client = self._connect() if held else self._client
        headers = {HEADERS[kind]: name for kind, name in said.items()}
        client.request("POST", COMPLETIONS, b"{}", headers | ({HELD: "1"} if held else {}))
        answer = client.getresponse()
        at = int(answer.headers["x-served-by"].removeprefix("r")) - 1
        begun = self.model.begin(names, choice, 0.0)
        if dead is not None and choice.at == dead:
            assert at != dead
            self.model.mark(dead, up=False)
            self.model.sent_again(begun, at)
            self.model.answered(begun)
        else:
            assert at == choice.at, (said, choice)
            self.predicted += 1
        if held:
            self.live.append(Live(client, begun))
        else:
            answer.read()
            self.model.end(begun, 0.0)
        return at

    def release(self, live: Live) -> None:
        """Its client leaves."""
        self.live.remove(live)
        live.client.close()
        self.model.end(live.held, 0.0)

    def release_all(self) -> None:
        for one in list(self.live):
            self.release(one)

    def settled(self) -> None:
        """Wait until the balancer counts as many live requests of each replica as the model."""
        expected = {f"r{i + 1}": n for i, n in enumerate(self.model.connections)}
        expected["BACKEND"] = self.model.n_connections
        until(self._counted, lambda counted: counted == expected)

    def noted(self, request_id: str) -> bool:
        """Return whether the balancer knows where this name is; the model must think so, too."""
        name = digest(request_id)
        known = f"key={name} " in self._balancer.table("requests")
        assert known == (name in self.model.requests.entries)
        return known

    def _counted(self) -> dict[str, int]:
        rows = [line.split(",") for line in self._balancer.tell("show stat llm 6 -1").splitlines() if line]
        return {row[1]: int(row[4]) for row in rows if row[0] == "llm"}

    # -- replicas -----------------------------------------------------------------------------------------------------

    def drain(self, replica: int, *, over: bool = False) -> None:
        self._balancer.tell(f"set server llm/r{replica + 1} weight {1 if over else 0}")
        self.model.mark(replica, is_open=over)

    def die(self, replica: int) -> None:
        """Cut the requests of a replica without the balancer's noticing."""
        self._stubs.die(replica)
        for one in [one for one in self.live if one.held.server == replica]:
            self.release(one)

    def come_back(self, replica: int) -> None:
        self._stubs.come_back(replica)
        until(lambda: self._balancer.states()[f"r{replica + 1}"], lambda state: state == "2")
        self.model.mark(replica, up=True)

    def reload(self, n: int, *, keep: bool) -> None:
        """Have the first `n` replicas. A process that is younger than ten seconds passes on no names: not `keep`."""
        self._client.close()
        self._balancer.reload(self._servers(n), keep=keep)
        self.model = self.model.successor(n, 0.0, self.model if keep else None)

    def __exit__(self, *_: object) -> None:
        self._closing.close()


def random_names(chance: random.Random, n: int) -> dict[str, str]:
    """Return the names that a request may give to `n` sessions: each has a key, and some have one parent."""
    i = chance.randrange(n)
    session, key, parent = f"session {i}", f"key {i}", f"session {i % 7}"
    ways: list[dict[str, str]] = [
        {},
        {"session": session},
        {"key": key},
        {"session": session, "key": key},
        {"session": session, "parent": parent},
        {"session": f"session {chance.randrange(n)}", "key": key},
        {"session": session, "key": key, "parent": parent},
    ]
    return chance.choice(ways)


def random_life(beside: BesideModel, chance: random.Random, n_requests: int, n_names: int) -> None:
    """Requests that end at once and others that stay, until some are full; replicas that are drained and taken back."""
    drained = set[int]()
    for _ in range(n_requests):
        match chance.random():
            case p if p < 0.02:
                replica = chance.randrange(len(beside.model.up))
                beside.drain(replica, over=replica in drained)
                drained ^= {replica}
            case p if p < 0.10 and beside.live:
                beside.release(chance.choice(beside.live))
                beside.settled()
            case p if p < 0.20 and len(beside.live) < 2 * SLOTS * len(beside.model.up):
                beside.send(held=True, **random_names(chance, n_names))
            case _:
                beside.send(**random_names(chance, n_names))
    for replica in drained:
        beside.drain(replica, over=True)
