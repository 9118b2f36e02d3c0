"""Workers elsewhere, at addresses of which some are those of names, and some are told by the workers themselves."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.errors import UsageError
from pyllmcancel.front import remotes, roster, worker
from pyllmcancel.front.place import DNS, Place
from pyllmcancel.front.remotes import resolved
from pyllmcancel.front.replica import State
from tests.front.world import COMPLETIONS, FAKE, RouterWorld, open_router
from tests.support.http_asgi import Exchange

pytestmark = pytest.mark.anyio

WORKERS = "/v1/workers"
KEY = {"x-worker-key": "key"}


class Far:
    """A worker elsewhere: a stand-in on a port of its own, which it keeps."""

    def __init__(self, folder: Path, name: str, *, serves: str = "m", host: str = "127.0.0.1", port: int = 0) -> None:
        self.name, self.folder, self.host, self.serves = name, folder, host, serves
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self, key: str = "key") -> None:
        told = self.folder / f"{self.name}.port"
        told.unlink(missing_ok=True)
        command = [sys.executable, "-I", "-S", str(FAKE), "--host", f"{self.host}:{self.port}"]
        environment = os.environ | {"CONTROL": str(self.folder), "KEY": key}
        options = ["--alias", self.name, "--serves", self.serves]
        self._process = subprocess.Popen([*command, *options], env=environment)
        while not (told.exists() and told.read_text()):
            assert self._process.poll() is None
            os.sched_yield()
        self.port = int(told.read_text())

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def place(self) -> Place:
        return Place("http", self.host, self.port)


@contextmanager
def far(folder: Path, *names: str, **options: Any) -> Iterator[list[Far]]:
    found: list[Far] = []
    try:
        for name in names:
            found.append(Far(folder, name, **options))  # noqa: PERF401 - those before one that fails are ended, too
        yield found
    finally:
        for one in found:
            one.kill()


@asynccontextmanager
async def open_far(folder: Path, *names: str, **options: Any) -> AsyncIterator[tuple[RouterWorld, list[Far]]]:
    """A front whose only workers are elsewhere, all of one model."""
    with far(folder, *names) as workers:
        async with open_router(folder, places=tuple(one.place for one in workers), **options) as world:
            for one in workers:
                await world.until(partial(is_loaded, world, one.name))
            yield world, workers


def is_loaded(world: RouterWorld, name: str) -> bool:
    found = world.keeper.roster.replicas.get(name)
    return found is not None and found.state is State.LOADED


def places(world: RouterWorld, *names: str) -> Counter[str]:
    return Counter({name: sum(COMPLETIONS in line for line in world.log_of(name)) for name in names})


async def test_workers_of_one_name_are_replicas_and_named_as_they_name_themselves(tmp_path: Path) -> None:
    async with open_far(tmp_path, "x", "y") as (world, _):
        streams = [await world.streaming("m", f"r{n}", until="end") for n in range(8)]
        assert places(world, "x", "y") == {"x": 4, "y": 4}
        (entry,) = (await world.get("/v1/models")).json()["data"]
        assert (entry["id"], entry["aliases"], entry["status"]) == ("m", ["known"], {"value": "loaded"})
        assert sorted((one["name"], one["running"]) for one in entry["replicas"]) == [("x", 4), ("y", 4)]
        listed = (await world.get("/v1/requests")).json()["data"]
        assert Counter(one["replica"] for one in listed) == {"x": 4, "y": 4}
        (tmp_path / "end").touch()
        assert [(await one.end()).events[-1] for one in streams] == ["[DONE]"] * 8
        assert (await world.complete("known").end()).status == 200
        assert (await world.post("/models/unload", {"model": "m"})).json()["error"]["code"] == "not_here"


async def test_a_request_is_cancelled_where_it_is_by_id_by_session_and_by_a_newer_one(tmp_path: Path) -> None:
    async with open_far(tmp_path, "x", "y") as (world, _):
        named = {"a": {}, "b": {"session_id": "s"}, "c": {"supersede": "k"}}
        streams = {name: await world.streaming("m", name, **own) for name, own in named.items()}
        assert (await world.post("/v1/requests/a/cancel")).json()["outcome"] == "cancelled"
        assert [one["id"] for one in (await world.post("/v1/sessions/s/cancel")).json()["requests"]] == ["b"]
        assert (await world.complete("m", "d", supersede="k").end()).status == 200
        for one in streams.values():
            assert "[DONE]" not in (await one.end()).events
        told = (await world.get("/v1/requests/c")).json()
        assert (told["cancel_reason"], told["superseded_by"]) == ("superseded", "d")


async def test_a_worker_that_dies_is_left_out_until_it_is_back(tmp_path: Path) -> None:
    async with open_far(tmp_path, "x", "y") as (world, workers):
        cut, kept = [await world.streaming("m", name, until="end", session_id=name) for name in "ab"]
        its = (await world.get("/v1/requests/a")).json()["replica"]
        (dead,), (other,) = ([one for one in workers if (one.name == its) is here] for here in (True, False))
        dead.kill()
        assert '"code": "model_ended"' in (await cut.end()).events[-1]
        assert [(await world.complete("m", session_id="a").end()).json()["model"] for _ in range(3)] == [other.name] * 3
        await world.until(lambda: not is_loaded(world, dead.name))
        dead.start()
        await world.until(lambda: is_loaded(world, dead.name))
        (tmp_path / "end").touch()
        assert (await kept.end()).events[-1] == "[DONE]"


async def test_requests_wait_for_an_absent_worker_but_not_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_far(tmp_path, "x") as (world, (x,)):
        x.kill()
        waiting = await world.waiting("m", "mine")
        x.start()
        assert (await waiting.end()).status == 200
        x.kill()
        await world.until(lambda: not is_loaded(world, "x"))
        monkeypatch.setattr(roster, "AWAY_SECONDS", 0.0)
        refused = await world.complete("m").end()
        assert refused.failure == (503, "worker_unreached")
        assert refused.headers["retry-after"] == "1"
        assert "the worker x cannot be reached" in refused.json()["error"]["message"]
        x.start()
        await world.until(lambda: is_loaded(world, "x"))
        assert (await world.complete("m").end()).status == 200


async def test_a_stuck_worker_gets_nothing_and_no_cancel_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "STUCK_SECONDS", 0.05)
    monkeypatch.setattr("pyllmcancel.front.relay.DEADLINE_SECONDS", 0.05)
    async with open_far(tmp_path, "x", "y") as (world, workers):
        stream = await world.streaming("m", "mine")
        (stuck,) = (one for one in workers if world.keeper.roster.replicas[one.name].running)
        stuck.signal(signal.SIGSTOP)
        try:
            assert (await world.post("/v1/requests/mine/cancel")).json()["outcome"] == "cancelled"
            await stream.end()
            await world.until(lambda: world.keeper.roster.replicas[stuck.name].is_stuck)
            other = {"x": "y", "y": "x"}[stuck.name]
            assert [(await world.complete("m").end()).json()["model"] for _ in range(3)] == [other] * 3
        finally:
            stuck.signal(signal.SIGCONT)
        await world.until(lambda: not world.keeper.roster.replicas[stuck.name].is_stuck)


async def test_a_worker_with_another_key_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with far(tmp_path, "x") as (x,):
        x.kill()
        x.start(key="another")
        async with open_router(tmp_path, places=(x.place,)) as world:
            assert (await world.get("/health")).status == 503
            await world.until(lambda: "does not take the worker key" in caplog.text)
            assert (await world.complete("m").end()).failure == (503, "worker_unreached")
            assert not any(line.startswith("request") for line in world.log_of("x"))


async def test_a_names_addresses_are_workers_looked_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "LOOK_EVERY", 0.01)
    hosts: list[str] = []
    n_asked = 0

    async def resolve(name: str) -> list[str]:
        nonlocal n_asked
        n_asked += 1
        assert name == "gpus"
        if not hosts:
            raise OSError("no such name")
        return hosts

    with far(tmp_path, "x") as (x,), far(tmp_path, "y", host="127.0.0.2", port=x.port):
        async with open_router(tmp_path, places=(Place(DNS, "gpus", x.port),), resolve=resolve) as world:
            await world.until(lambda: n_asked)
            assert (await world.complete("m").end()).status == 503
            hosts.append("127.0.0.1")
            await world.until(lambda: is_loaded(world, "x"))
            hosts.append("127.0.0.2")
            await world.until(lambda: is_loaded(world, "y"))
            hosts.remove("127.0.0.1")
            await world.until(lambda: "x" not in world.keeper.roster.replicas)
            assert (await world.complete("m").end()).json()["model"] == "y"


def register(world: RouterWorld, headers: dict[str, str], **said: Any) -> Exchange:
    return world.begin("POST", WORKERS, said, headers=headers)


async def test_a_worker_registers_and_leaves_and_its_model_stays_known(tmp_path: Path) -> None:
    with far(tmp_path, "x") as (x,):
        async with open_router(tmp_path, places=()) as world:
            assert (await world.complete("m").end()).status == 503
            assert (await register(world, {"x-worker-key": "no"}, port=x.port).end()).status == 401
            assert (await register(world, {}, port=x.port).end()).status == 401
            assert (await world.begin("GET", WORKERS, headers=KEY).end()).status == 400
            assert (await register(world, KEY, port=0).end()).status == 400
            assert (await register(world, KEY, port=1, url="ftp://x:1").end()).status == 400
            assert not world.keeper.roster.replicas
            for _ in range(2):
                assert (await register(world, KEY, port=x.port).end()).status == 200
            await world.until(lambda: is_loaded(world, "x"))
            assert (await world.complete(None).end()).json()["model"] == "x"
            stream = await world.streaming("m", until="end")
            assert (await register(world, KEY, port=x.port, leaves=True).end()).status == 200
            assert [one.name for one in world.keeper.roster.replicas.values()] == ["m"]
            waiting = await world.waiting("m", "mine")
            (tmp_path / "end").touch()
            assert (await stream.end()).events[-1] == "[DONE]"  # what it computes goes on
            assert (await register(world, KEY, port=1, url=f"http://127.0.0.1:{x.port}").end()).status == 200
            assert (await waiting.end()).json()["model"] == "x"
            assert [one.name for one in world.keeper.roster.replicas.values()] == ["x"]


async def test_a_worker_that_says_nothing_more_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remotes, "LOOK_EVERY", 0.01)
    with far(tmp_path, "x") as (x,):
        async with open_router(tmp_path, places=()) as world:
            await register(world, KEY, port=x.port).end()
            await world.until(lambda: is_loaded(world, "x"))
            monkeypatch.setattr(remotes, "FORGET_AFTER", 0.0)
            world.keeper.remotes._until.update(dict.fromkeys(world.keeper.remotes._until, 0.0))
            await world.until(lambda: "x" not in world.keeper.roster.replicas)
            assert not is_loaded(world, "m")


async def test_a_worker_may_come_back_with_another_model(tmp_path: Path) -> None:
    async with open_far(tmp_path, "x") as (world, (x,)):
        x.kill()
        x.serves = "n"
        x.start()
        await world.until(lambda: world.keeper.catalog.find("n") is not None)
        assert (await world.complete("n").end()).json()["model"] == "x"
        assert {one.name: one.of for one in world.keeper.roster.replicas.values()} == {"x": "n", "m": "m"}


async def test_what_waits_for_a_worker_that_is_forgotten_waits_on(tmp_path: Path) -> None:
    with far(tmp_path, "x") as (x,):
        async with open_router(tmp_path, places=()) as world:
            await register(world, KEY, port=x.port).end()
            await world.until(lambda: is_loaded(world, "x"))
            x.signal(signal.SIGSTOP)  # it takes connections, and answers none
            stuck = world.keeper.processes["x"]
            x.kill()
            waiting = await world.waiting("m", "mine")
            await register(world, KEY, port=x.port, leaves=True).end()
            await stuck.end()  # it does not wait for a look that never comes
            x.start()
            await register(world, KEY, port=x.port).end()
            assert (await waiting.end()).json()["model"] == "x"


async def test_local_processes_and_workers_elsewhere_serve_one_model_together(tmp_path: Path) -> None:
    with far(tmp_path, "x") as (x,):
        async with open_router(tmp_path, "m", "n", specs={"m": {"starts": True}}, places=(x.place,)) as world:
            await world.until_state("m", State.LOADED)
            await world.until(lambda: is_loaded(world, "x"))
            streams = [await world.streaming("m", until="end") for _ in range(8)]
            assert places(world, "m", "x") == {"m": 4, "x": 4}
            (tmp_path / "end").touch()
            for one in streams:
                await one.end()
            assert (await world.post("/models/unload", {"model": "m"})).status == 200
            await world.until_state("m", State.UNLOADED)
            assert (await world.complete("m").end()).json()["model"] == "x"
            assert world.starts("m") == 1  # it is not needed beside a worker elsewhere
            await world.get("/models?reload=1")
            assert (await world.complete("known").end()).json()["model"] == "x"


async def test_a_name_is_looked_up_by_the_system() -> None:
    assert "127.0.0.1" in await resolved("localhost")
    with pytest.raises((OSError, UnicodeError)):
        await resolved("x" * 300)


@pytest.mark.parametrize(
    "text",
    ["", "host:1", "http://host", "http://:1", "http://h:0", "http://h:1/x", "http://u@h:1", "dns://h:1", "http://h:x"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        Place.parse(text, "http", "https")


def test_addresses() -> None:
    assert Place.parse("https://[::1]:8/", "http", "https") == Place("https", "::1", 8)
    assert Place.parse("dns://gpus:8", DNS) == Place(DNS, "gpus", 8)


async def test_a_clock_that_is_ahead_is_counted_in(tmp_path: Path) -> None:
    async with open_far(tmp_path, "x") as (world, _):
        far_worker = world.keeper.processes["x"]
        assert abs(far_worker.clock_ahead) < 1.0  # the same machine's
        far_worker.clock_ahead, far_worker._best_trip = 1_000.0, 0.0  # no better look will come
        before = asyncio.get_running_loop().time()
        told = (await world.complete("m").end()).json()["headers"]["x-arrived"]
        assert float(told.split(" ")[0]) >= before + 1_000.0
