"""Several processes of one model behind one address."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.front.model import State
from pyllmcancel.front.upstream import Exchange
from tests.front.world import COMPLETIONS, RouterWorld, open_router

pytestmark = pytest.mark.anyio

BOTH = ("m", "m:2")


@asynccontextmanager
async def open_replicas(folder: Path, **options: Any) -> AsyncIterator[RouterWorld]:
    """A model with two processes, of four slots each, that serve."""
    async with open_router(folder, "m", specs={"m": {"starts": True, "replicas": 2}}, **options) as world:
        for name in BOTH:
            await world.until_state(name, State.LOADED)
        yield world


def places(world: RouterWorld) -> Counter[str]:
    """The numbers of completions that each process has got."""
    return Counter({name: sum(COMPLETIONS in line for line in world.log_of(name)) for name in BOTH})


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


async def test_eight_streams_without_names_take_four_slots_of_each(tmp_path: Path) -> None:
    async with open_replicas(tmp_path) as world:
        streams = [world.stream("m", until="end") for _ in range(8)]
        for one in streams:
            await one.next_event()
        assert places(world) == {"m": 4, "m:2": 4}
        (entry,) = (await world.get("/v1/models")).json()["data"]
        assert (entry["running"], [one["running"] for one in entry["replicas"]]) == (8, [4, 4])
        (tmp_path / "end").touch()
        assert [(await one.end()).events[-1] for one in streams] == ["[DONE]"] * 8


@pytest.mark.long
@pytest.mark.parametrize("named", [{"supersede": "k"}, {"session_id": "s"}])
async def test_what_names_a_live_name_goes_to_its_process(tmp_path: Path, named: dict[str, str]) -> None:
    async with open_replicas(tmp_path) as world:
        first = world.complete("m", stream=True, until="end", **named)
        await first.next_event()
        for _ in range(6):  # more than its slots
            await world.complete("m", stream=True, until="end", **named).next_event()
        await world.complete("m", stream=True, until="end", parent_session_id=named.get("session_id")).next_event()
        at_it, elsewhere = ("m", "m:2") if places(world)["m"] > 1 else ("m:2", "m")
        assert places(world)[at_it] == (8 if "session_id" in named else 7)
        (tmp_path / "end").touch()
        await first.end()
        assert places(world)[elsewhere] == 8 - places(world)[at_it]


@pytest.mark.long
async def test_a_cancel_by_id_reaches_the_process_that_has_the_request(tmp_path: Path) -> None:
    async with open_replicas(tmp_path) as world:
        streams = {name: world.stream("m", name) for name in ("one", "two")}
        for one in streams.values():
            await one.next_event()
        assert places(world) == {"m": 1, "m:2": 1}
        for name, one in streams.items():
            answer = (await world.post(f"/v1/requests/{name}/cancel")).json()
            assert (answer["id"], answer["outcome"]) == (name, "cancelled")
            await one.end()


@pytest.mark.long
async def test_a_session_is_cancelled_on_all_processes(tmp_path: Path) -> None:
    async with open_replicas(tmp_path) as world:
        above = world.complete("m", "above", stream=True, until="never", session_id="main")
        await above.next_event()
        below = world.complete("m", "below", stream=True, until="never", session_id="sub", parent_session_id="main")
        await below.next_event()
        other = world.stream("m", "other", until="end")
        await other.next_event()
        answer = (await world.post("/v1/sessions/main/cancel")).json()
        assert sorted(one["id"] for one in answer["requests"]) == ["above", "below"]
        await above.end()
        await below.end()
        (tmp_path / "end").touch()
        assert (await other.end()).events[-1] == "[DONE]"


@pytest.mark.long
async def test_a_killed_process_ends_what_it_had_begun_and_the_other_one_answers_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, sent = Exchange.begin, asyncio.Event()

    async def begun(*given: Any) -> Exchange:
        exchange = await begin(*given)
        sent.set()
        return exchange

    async with open_replicas(tmp_path) as world:
        streams = [world.complete("m", stream=True, until="end", session_id=f"s{n}") for n in range(2)]
        for one in streams:
            await one.next_event()
        os.kill(world.pid("m"), signal.SIGSTOP)  # the system takes connections for it
        world.hold_loads("m")  # when it comes back
        with monkeypatch.context() as patched:
            patched.setattr("pyllmcancel.front.forwarding.Exchange.begin", begun)
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
        streams = {name: world.stream("m", until=f"{name}.end") for name in BOTH}
        for one in streams.values():
            await one.next_event()
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
        refused = await world.post("/models/restart", {"model": "m"})
        assert (refused.status, refused.json()["error"]["code"]) == (400, "model_not_loaded")
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
        request = world.complete("m", "mine")
        await world.waits("mine")
        world.specs = []
        await world.get("/models?reload=1")
        assert (await request.end()).json()["error"]["code"] == "model_not_loaded"
        await world.until(lambda: not world.keeper.processes)
