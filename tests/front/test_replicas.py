"""Several processes of one model behind one address."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.front.replica import State
from tests.front.world import COMPLETIONS, RouterWorld, open_router, sending

pytestmark = pytest.mark.anyio

BOTH = ("m", "m:2")


@asynccontextmanager
async def open_replicas(folder: Path, **options: Any) -> AsyncIterator[RouterWorld]:
    """A model with two processes, of four slots each, that serve."""
    async with open_router(folder, "m", specs={"m": {"starts": True, "replicas": 2}}, **options) as world:
        for name in BOTH:
            await world.until_state(name, State.LOADED)
        yield world


def is_started_twice(world: RouterWorld, name: str) -> bool:
    return world.starts(name) == 2


@pytest.mark.long
async def test_the_server_is_ready_with_the_first_process_and_lists_the_model_once(tmp_path: Path) -> None:
    specs = {"m": {"starts": True, "replicas": 2}}
    async with open_router(tmp_path, "m", specs=specs, loads=BOTH) as world:
        await world.until_state("m", State.LOADING)
        assert (await world.get("/health")).status == 503
        assert world.starts("m:2") == 0
        world.let_load("m")
        await world.until_state("m:2", State.LOADING)
        assert (await world.get("/health")).status == 200
        (entry,) = (await world.get("/v1/models")).json()["data"]
        assert (entry["id"], entry["status"]) == ("m", {"value": "loaded"})
        assert [(one["name"], one["status"]["value"]) for one in entry["replicas"]] == [
            ("m", "loaded"),
            ("m:2", "loading"),
        ]
        assert (await world.complete("m").end()).status == 200
        assert (await world.complete("m:2").end()).status == 404  # which process it is is the front's business


@pytest.mark.long
async def test_a_killed_process_ends_only_what_it_had_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_replicas(tmp_path) as world:
        streams = [await world.streaming("m", until="end", session_id=f"s{n}") for n in range(2)]
        os.kill(world.pid("m"), signal.SIGSTOP)  # the system takes connections for it
        world.hold_loads("m")  # when it comes back
        with monkeypatch.context() as patched:
            sent = sending(patched)
            unread = world.complete("m", "mine", session_id="s0")
            await sent.wait()
        os.kill(world.pid("m"), signal.SIGKILL)
        assert (await unread.end()).json()["model"] == "m:2"
        assert world.log_of("m:2").count(f"request {COMPLETIONS} mine") == 1
        await streams[0].end()
        assert '"code": "model_ended"' in streams[0].events[-1]
        await world.until(lambda: world.starts("m") == 2)
        assert (await world.complete("m", session_id="s0").end()).json()["model"] == "m:2"
        world.let_load("m")
        await world.until_state("m", State.LOADED)
        (tmp_path / "end").touch()
        assert (await streams[1].end()).events[-1] == "[DONE]"


async def test_a_rolling_restart_cuts_no_stream(tmp_path: Path) -> None:
    async with open_replicas(tmp_path) as world:
        before = {name: world.pid(name) for name in BOTH}
        streams = {name: await world.streaming("m", until=f"{name}.end") for name in BOTH}
        assert (await world.post("/models/restart", {"model": "m"})).json() == {"success": True}
        for name, other in zip(BOTH, reversed(BOTH), strict=True):
            assert (await world.complete("m").end()).json()["model"] == other
            assert world.pid(name) == before[name]
            (tmp_path / f"{name}.end").touch()
            assert (await streams[name].end()).events[-1] == "[DONE]"
            await world.until(partial(is_started_twice, world, name))
            await world.until_state(name, State.LOADED)
        await world.until(lambda: all(one.is_open for one in world.keeper.workers("m")))
        assert (world.starts("m"), world.starts("m:2")) == (2, 2)


@pytest.mark.long
async def test_all_processes_are_unloaded_and_loaded_together(tmp_path: Path) -> None:
    async with open_replicas(tmp_path) as world:
        answer = await world.post("/models/load", {"model": "m"})
        assert answer.json()["error"]["code"] == "already_loaded"
        await world.post("/models/unload", {"model": "m"})
        for name in BOTH:
            await world.until_state(name, State.UNLOADED)
        assert (await world.post("/models/restart", {"model": "m"})).failure == (400, "model_not_loaded")
        await world.post("/models/load", {"model": "m"})
        for name in BOTH:
            await world.until_state(name, State.LOADED)


@pytest.mark.long
async def test_a_request_waits_for_the_next_process_if_all_have_died(tmp_path: Path) -> None:
    async with open_replicas(tmp_path) as world:
        for name in BOTH:
            os.kill(world.pid(name), signal.SIGKILL)
        assert (await world.complete("m").end()).status == 200
        for name in BOTH:
            await world.until(partial(is_started_twice, world, name))


@pytest.mark.long
async def test_a_request_whose_model_is_removed_while_it_waits_is_refused(tmp_path: Path) -> None:
    async with open_router(tmp_path, "m", specs={"m": {"replicas": 2}}, loads=BOTH) as world:
        request = await world.waiting("m", "mine")
        world.specs = []
        await world.get("/models?reload=1")
        assert (await request.end()).json()["error"]["code"] == "model_not_loaded"
        await world.until(lambda: not world.keeper.processes)
