"""Starting and stopping the application itself, as any ASGI server does."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.constraints.bounded import BoundedGuidance
from pyllmcancel.engine.loading import Loading
from pyllmcancel.requests.observer import NullObserver
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import ServerConfig
from tests.support.held_load import HeldLoad
from tests.support.http_asgi import LIMIT, Exchange, until_healthy
from tests.support.http_world import World
from tests.support.threads import N_THREADS


async def test_an_engine_of_the_callers_own_stays_open(world: World) -> None:
    async with world.app.router.lifespan_context(world.app):
        pass
    assert (await world.complete(max_tokens=1).end()).status == 200


@pytest.mark.parametrize("at_once", [True, False])
async def test_leaving_while_the_model_is_loading_cancels_the_load(*, at_once: bool) -> None:
    held = HeldLoad()
    loading = Loading(EngineConfig(), NullObserver(), load=held)
    app = create_app(ServerConfig(engine=EngineConfig()), loading=loading)
    async with asyncio.timeout(LIMIT):
        async with app.router.lifespan_context(app):
            if not at_once:
                assert await asyncio.to_thread(held.begun.wait, LIMIT)
        answer = await Exchange(app, "GET", "/v1/models").end()
    assert answer.status == 503
    assert "cancelled" in answer.json()["error"]["message"]


async def test_an_engine_that_comes_too_late_is_closed_and_never_served(world: World) -> None:
    held = HeldLoad()
    held.bring(world.engine)
    loading = Loading(EngineConfig(), NullObserver(), load=held)
    loading.future.result(LIMIT)
    app = create_app(world.app.state.server.config, loading=loading)
    await app.state.server.close(drain=0.0)
    async with asyncio.timeout(LIMIT), app.router.lifespan_context(app):
        await asyncio.sleep(0)
    assert (await Exchange(app, "GET", "/v1/models").end()).status == 503
    assert world.engine.registry.closed


async def test_an_engine_that_was_on_its_way_is_adopted_and_closed(world: World) -> None:
    held = HeldLoad()
    app = create_app(world.app.state.server.config, loading=Loading(EngineConfig(), NullObserver(), load=held))
    async with asyncio.timeout(LIMIT), app.router.lifespan_context(app):
        held.bring(world.engine)
        await until_healthy(app)
        assert app.state.server.engine is world.engine
    assert world.engine.registry.closed


async def test_nobody_is_served_before_the_vocabulary_was_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()
    monkeypatch.setattr(BoundedGuidance, "prepare", lambda _: read.wait(LIMIT))
    held = HeldLoad()
    held.bring(world.engine)
    loading = Loading(EngineConfig(), NullObserver(), load=held)
    app = create_app(world.app.state.server.config, loading=loading)
    async with asyncio.timeout(LIMIT), app.router.lifespan_context(app):
        await asyncio.wrap_future(loading.future)
        await asyncio.sleep(0)  # the application has the engine now
        assert (await Exchange(app, "GET", "/health").end()).status == 503
        read.set()
        await until_healthy(app)


async def test_live_requests_of_a_loaded_engine_end_when_the_application_does(long_model: Path) -> None:
    app = create_app(ServerConfig(engine=EngineConfig(model=long_model, threads=N_THREADS, ctx_size=16_384)))
    headers = {"content-type": "application/json", "x-request-id": "mine"}
    async with asyncio.timeout(LIMIT):
        async with app.router.lifespan_context(app):
            await until_healthy(app)
            body = b'{"prompt": "hello", "max_tokens": 10000, "stream": true}'
            exchange = Exchange(app, "POST", "/v1/completions", body=body, headers=headers)
            await exchange.next_event()
        await exchange.end()
    assert '"code": "shutdown"' in exchange.events[-1]
