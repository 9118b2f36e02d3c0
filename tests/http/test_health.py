"""``/health``: 200 when requests can be served, else 503 with the reason; and how the application starts and stops."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from fastapi import FastAPI

from pyllmcancel.config import EngineConfig
from pyllmcancel.constraints.bounded import BoundedGuidance
from pyllmcancel.engine.loading import Loading
from pyllmcancel.errors import ModelLoadError
from pyllmcancel.requests.observer import Observer
from pyllmcancel.server import state as state_module
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import ServerConfig
from tests.support.held_load import HeldLoad
from tests.support.http_asgi import LIMIT, Exchange, until_healthy
from tests.support.http_world import World, open_world

PATHS = pytest.mark.parametrize("path", ["/health", "/v1/health"])


async def fetch(app: FastAPI, path: str = "/health") -> Exchange:
    return await Exchange(app, "GET", path).end()


@PATHS
async def test_ok_with_the_counts(path: str) -> None:
    async with open_world(parallel=1) as world:
        assert (await world.get(path)).json() == {"status": "ok", "waiting": 0, "running": 0}
        await world.running_stream("a")
        await world.submitted("b")
        exchange = await world.get(path)
        assert exchange.status == 200
        assert exchange.json() == {"status": "ok", "waiting": 1, "running": 1}
        assert (await world.begin("HEAD", path).end()).status == 200


def loading_app(held: HeldLoad) -> FastAPI:
    loading = Loading(EngineConfig(), Observer(), load=held)
    return create_app(ServerConfig(engine=EngineConfig()), loading=loading)


@PATHS
async def test_503_while_loading(path: str) -> None:
    held = HeldLoad()
    app = loading_app(held)
    state = {"status": "loading", "stage": "loading", "progress": 0.0, "error": None}
    assert (await fetch(create_app(ServerConfig(engine=EngineConfig())), path)).json() == state, "before any load"
    async with asyncio.timeout(LIMIT), app.router.lifespan_context(app):
        assert await asyncio.to_thread(held.begun.wait, LIMIT)
        exchange = await fetch(app, path)
        assert exchange.status == 503
        assert int(exchange.headers["retry-after"]) >= 1
        assert exchange.json() == state | {"progress": 0.5}
        held.bring(ModelLoadError("enough"))


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/requests"), ("GET", "/v1/events")],
)
async def test_everything_that_needs_the_model_is_503_while_loading(method: str, path: str) -> None:
    app = create_app(ServerConfig(engine=EngineConfig()))
    headers = {"content-type": "application/json"}
    exchange = await Exchange(app, method, path, body=b'{"prompt": "x"}', headers=headers).end()
    assert exchange.status == 503
    assert exchange.json()["error"]["code"] == "loading"
    assert "retry-after" in exchange.headers
    assert (await fetch(app, "/metrics")).status == 200


async def test_503_failed_when_the_model_is_broken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_text("not a model")
    app = create_app(ServerConfig(engine=EngineConfig(model=broken)))
    gave_up = asyncio.Event()
    app.state.server.on_load_failure = gave_up.set
    async with asyncio.timeout(LIMIT), app.router.lifespan_context(app):
        await gave_up.wait()
        exchange = await fetch(app)
        assert (exchange.status, exchange.json()["status"]) == (503, "failed")
        assert "broken.gguf" in exchange.json()["error"]
        assert (await Exchange(app, "GET", "/v1/models").end()).failure == (503, "load_failed")
    assert "the model could not be loaded" in caplog.text


async def test_503_stalled_when_a_step_takes_too_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.running_stream("mine")
    monkeypatch.setattr(state_module, "STALLED_AFTER_SECONDS", 0.0)
    exchange = await world.get("/health")
    assert (exchange.status, exchange.json()["status"]) == (503, "stalled")
    monkeypatch.undo()
    assert (await world.get("/health")).status == 200


async def test_503_failed_when_the_engine_died_and_no_client_hangs(caplog: pytest.LogCaptureFixture) -> None:
    def defect(tokens: Sequence[int]) -> None:
        if bytes(tokens) == b"poison":
            raise ZeroDivisionError

    world = World(parallel=1)
    world.context.before_open = defect
    neighbour = await world.running_stream("neighbour", max_tokens=1)
    exchanges = [world.complete("poison"), world.complete("waits", headers={"x-request-id": "waits"})]
    await world.added("waits")
    world.gate.open()
    await neighbour.end()
    for exchange in exchanges:
        assert (await exchange.end()).status == 500
        assert exchange.json()["error"]["code"] == "request_failed"
    await asyncio.to_thread(world.engine._thread.join)
    exchange = await world.get("/health")
    assert (exchange.status, exchange.json()["status"]) == (503, "failed")
    late = await world.complete().end()
    assert late.failure == (500, "engine_failed")
    assert late.headers["x-should-retry"] == "false"
    assert (await world.get("/v1/requests/waits")).status == 200
    await world.close()
    assert "the engine thread died" in caplog.text


# -- starting and stopping the application, as any ASGI server does ----------------------------------------------------


async def test_an_engine_of_the_callers_own_stays_open(world: World) -> None:
    async with world.app.router.lifespan_context(world.app):
        pass
    assert (await world.complete(max_tokens=1).end()).status == 200


@pytest.mark.parametrize("at_once", [True, False])
async def test_leaving_while_the_model_is_loading_cancels_the_load(*, at_once: bool) -> None:
    held = HeldLoad()
    app = loading_app(held)
    async with asyncio.timeout(LIMIT):
        async with app.router.lifespan_context(app):
            if not at_once:
                assert await asyncio.to_thread(held.begun.wait, LIMIT)
        answer = await Exchange(app, "GET", "/v1/models").end()
    assert answer.status == 503
    assert "cancelled" in answer.json()["error"]["message"]


@pytest.mark.parametrize("late", [False, True])
async def test_an_engine_that_was_on_its_way_is_adopted_or_comes_too_late_and_is_closed(
    world: World, *, late: bool
) -> None:
    held = HeldLoad()
    loading = Loading(EngineConfig(), Observer(), load=held)
    app = create_app(world.app.state.server.config, loading=loading)
    if late:
        held.bring(world.engine)
        loading.future.result(LIMIT)
        await app.state.server.close(drain=0.0)
    async with asyncio.timeout(LIMIT), app.router.lifespan_context(app):
        if late:
            await asyncio.sleep(0)
        else:
            held.bring(world.engine)
            await until_healthy(app)
            assert app.state.server.engine is world.engine
    assert (await fetch(app, "/v1/models")).status == (503 if late else 200)
    assert world.engine.registry.closed


async def test_nobody_is_served_before_the_vocabulary_was_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()
    monkeypatch.setattr(BoundedGuidance, "prepare", lambda _: read.wait(LIMIT))
    held = HeldLoad()
    held.bring(world.engine)
    loading = Loading(EngineConfig(), Observer(), load=held)
    app = create_app(world.app.state.server.config, loading=loading)
    async with asyncio.timeout(LIMIT), app.router.lifespan_context(app):
        await asyncio.wrap_future(loading.future)
        await asyncio.sleep(0)  # the application has the engine now
        assert (await Exchange(app, "GET", "/health").end()).status == 503
        read.set()
        await until_healthy(app)
