"""The whole server over a fake engine whose steps a test lets through one by one."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast

from fastapi import FastAPI

from pyllmcancel.chat.template import ChatTemplate
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.generation import Generation
from pyllmcancel.requests.observer import StepRecord
from pyllmcancel.requests.request import Request
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import ApiKey, ServerConfig
from pyllmcancel.server.limits import Limits
from pyllmcancel.server.running.metrics import EngineMetrics
from tests.support import fake_native
from tests.support.http_asgi import LIMIT, Clients, Exchange
from tests.support.step_gate import HeldStep

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


class WatchedMetrics(EngineMetrics):
    """The server's own observer, which tells of arrivals besides: they happen in the event loop's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        # Called in the engine's thread, after a step and before its tokens are handed out.
        self.on_step_done: Callable[[StepRecord], object] = lambda _: None

    def request_added(self, request: Request) -> None:
        super().request_added(request)
        self.arrivals[request.id].set()

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        super().step_done(record, n_wasted)
        self.on_step_done(record)


class SharedTemplate(ChatTemplate):
    """Its process serves all worlds: to start one takes longer than most tests."""

    def close(self) -> None: ...


@cache
def shared_template() -> SharedTemplate:
    return SharedTemplate(None)


class World(Clients):
    """A server and its clients. Steps run freely until :meth:`hold`. Options are ServerConfig's and EngineConfig's."""

    app: FastAPI

    def __init__(
        self,
        *,
        model: fake_native.Model | None = None,
        encoder: fake_native.MediaEncoder | None = None,
        n_ctx: int = 1024,
        **options: Any,
    ) -> None:
        server_options = {name: options.pop(name) for name in ServerConfig.__slots__ if name in options}
        limits = Limits(**{name: options.pop(name) for name in Limits.__slots__ if name in options})
        self.model = model or fake_native.Model()
        # Chunks as large as the batch: what a held step costs is no measure of anything.
        defaults: dict[str, Any] = {"parallel": 2, "alias": "fake-model", "itl_target": 1e9, "max_step_seconds": 1e9}
        config = EngineConfig(**(defaults | options))
        sizes: dict[str, Any] = {"n_ctx": n_ctx, "n_seq_max": config.parallel + 2, "n_batch": 256, "n_threads": 1}
        self.context = fake_native.Context(self.model, **sizes)
        self.context.step_cost = (0.0, 1.0)
        self.metrics = WatchedMetrics()
        workload = Generation(cast("Any", self.context), config, fake_native, encoder=cast("Any", encoder))
        self.engine = Engine(workload, observer=self.metrics)
        server_config = ServerConfig(engine=config, limits=limits, **server_options)
        self.app = create_app(server_config, self.engine, self.metrics)
        if self.model.chat_template is None and server_config.chat_template is None and server_config.chat.jinja:
            self.app.state.server.chat_template = shared_template()
        self.gate = self.context.gate
        self.exchanges: list[Exchange] = []
        self.closing: asyncio.Task[None] | None = None

    # -- steps --------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From now on steps wait for :meth:`step`."""
        self.gate.hold()

    async def held(self) -> HeldStep:
        """Wait until a step has begun."""
        return await asyncio.to_thread(self.gate.wait_held)

    async def step(self, n_steps: int = 1) -> None:
        for _ in range(n_steps):
            await self.held()
            self.gate.let_through()

    # -- clients ------------------------------------------------------------------------------------------------------

    def complete(self, prompt: Any = "hello", *, headers: dict[str, str] | None = None, **fields: Any) -> Exchange:
        return self.begin("POST", COMPLETIONS, {"prompt": prompt} | fields, headers=headers)

    def chat(self, content: str = "hello", *, headers: dict[str, str] | None = None, **fields: Any) -> Exchange:
        """Begin a chat completion of one user message, unless `fields` has other `messages`."""
        messages = {"messages": [{"role": "user", "content": content}]}
        return self.begin("POST", CHAT, messages | fields, headers=headers)

    async def served(self, path: str, body: Any = None, **options: Any) -> Exchange:
        """Post what must be answered with 200."""
        exchange = await self.post(path, body, **options)
        assert exchange.status == 200, exchange.body
        return exchange

    # -- looking ------------------------------------------------------------------------------------------------------

    async def requests(self, query: str = "") -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = (await self.get(f"/v1/requests{query}")).json()["data"]
        return listed

    async def request(self, request_id: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.get(f"/v1/requests/{request_id}")).json()
        return found

    async def ended(self, request_id: str) -> dict[str, Any]:
        """Wait until nothing is computed for a request any more; how it stands then."""
        found = self.engine.registry.find(request_id)
        if isinstance(found, Request):
            async with asyncio.timeout(LIMIT):
                await asyncio.shield(asyncio.wrap_future(found.ended))
        return await self.request(request_id)

    async def added(self, request_id: str) -> None:
        async with asyncio.timeout(LIMIT):
            await self.metrics.arrivals[request_id].wait()

    async def cancelling(self, request_id: str) -> None:
        """Wait until a request was cancelled that had begun to run; it may have ended meanwhile."""
        found = self.engine.registry.find(request_id)
        if isinstance(found, Request):
            flag = cast("fake_native.CancelFlag", found.cancellation.flag)
            assert await asyncio.to_thread(flag.wait, LIMIT)
        else:
            assert getattr(found, "cancel_reason", None) is not None

    async def submitted(self, request_id: str, *prompt: Any, headers: Any = None, **fields: Any) -> Exchange:
        """A completion of this id that was accepted."""
        exchange = self.complete(*prompt, headers=(headers or {}) | {"x-request-id": request_id}, **fields)
        await self.added(request_id)
        return exchange

    async def computing(self, *prompt: Any, n_steps: int = 0, **fields: Any) -> Exchange:
        """A completion that has had so many steps, and whose next one is held. Steps are held from here on."""
        self.hold()
        exchange = self.complete(*prompt, **fields)
        await self.step(n_steps)
        await self.held()
        return exchange

    async def running_stream(self, request_id: str, prompt: Any = "neighbour", **fields: Any) -> Exchange:
        """A stream that has a slot: its first step is held. Steps are held from here on."""
        self.hold()
        options = {"stream": True, "max_tokens": 8, "temperature": 0, "ignore_eos": True} | fields
        exchange = self.complete(prompt, headers={"x-request-id": request_id}, **options)
        await self.held()
        return exchange

    # -- causes of an end ---------------------------------------------------------------------------------------------

    def expire(self, request_id: str) -> None:
        """Let a request's deadline be now: the deadline is the watcher's own, only the time is the test's."""
        found = self.engine.registry.find(request_id)
        assert isinstance(found, Request)
        self.engine._watcher.at_deadline(found, time.monotonic())

    async def bring_about(self, reason: str) -> None:
        """Cancel the request ``mine``, whose key is ``key``, for this reason. Its computation may still go on."""
        match reason:
            case "superseded":
                self.complete("successor", max_tokens=1, headers={"x-supersede": "key", "x-request-id": "successor"})
            case "explicit":
                cancelled = await self.post("/v1/requests/mine/cancel?wait=false")
                assert cancelled.json()["outcome"] == "cancelled"
            case "deadline":
                self.expire("mine")
            case "shutdown":
                self.closing = asyncio.create_task(self.shut_down())

    async def shut_down(self, drain: float = 0.0) -> None:
        await self.app.state.server.close(drain)

    async def close(self) -> None:
        self.gate.open()
        await self.leave_all()
        if self.closing is not None:
            await self.closing
        await asyncio.to_thread(self.engine.close)
        await self.app.state.server.streams.close()
        await self.app.state.batches.close()
        await self.app.state.responses.close()
        await self.app.state.server.workers.wait_closed()
        await self.app.state.server.end_helpers()


@asynccontextmanager
async def open_world(**options: Any) -> AsyncIterator[World]:
    """A world that is checked for leaks when it is left."""
    world = World(**options)
    try:
        yield world
    finally:
        await world.close()
    assert world.engine.failure is None
    assert world.context.open_seqs == []
    assert world.engine.counts() == (0, 0, 0, 0)


async def one_of_each(world: World) -> None:
    """One finished, one cancelled in decode, one cancelled in the queue."""
    await world.complete("a prompt", max_tokens=3, ignore_eos=True).end()
    world.hold()
    decoding = world.complete(max_tokens=50, ignore_eos=True, headers={"x-request-id": "decoding"})
    await world.step(2)
    await world.held()
    waiting = world.complete(headers={"x-request-id": "waiting"})
    await world.added("waiting")
    await world.post("/v1/requests/waiting/cancel")
    decoding.leave()
    await decoding.end()
    await waiting.end()


def accepted(world: World) -> list[Request]:
    """Gets every request that the engine accepts from now on."""
    made: list[Request] = []
    accept = world.metrics.request_added

    def added(request: Request) -> None:
        made.append(request)
        accept(request)

    world.metrics.request_added = added  # type: ignore[method-assign]
    return made


def unnamed(*keys: str) -> tuple[ApiKey, ...]:
    """Keys as ``--api-key`` gives them."""
    return tuple(ApiKey.unnamed(key) for key in keys)
