"""A server of a fake model that pools or ranks, for the tests of its endpoints."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pyllmcancel.config import EngineConfig
from pyllmcancel.embeddings.pairs import TEMPLATE
from pyllmcancel.embeddings.workload import Embedding
from pyllmcancel.engine.engine import Engine
from pyllmcancel.pooling import Pooling
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import ServerConfig
from tests.support import fake_embedder
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import WatchedMetrics

EMBEDDINGS = "/v1/embeddings"


class Site:
    """A server of a fake model that pools or ranks, and its clients. Steps run freely until the gate is held."""

    def __init__(self, pooling: Pooling = Pooling.MEAN, template: str | None = None, **config: Any) -> None:
        self.model = fake_embedder.Model("none")
        self.model.n_scores = 1
        if template is not None:
            self.model.metadata[TEMPLATE] = template
        self.embedder = fake_embedder.Embedder(
            self.model, n_ctx=64, n_seq_max=8, n_batch=64, n_threads=1, pooling=pooling
        )
        self.gate = self.embedder.gate
        settings = EngineConfig(**{"parallel": 2, "alias": "fake-embedder", "max_step_seconds": 1e9} | config)
        self.metrics = WatchedMetrics()
        self.engine = Engine(Embedding(self.embedder, settings, fake_embedder), observer=self.metrics)
        self.app = create_app(ServerConfig(engine=settings), self.engine, self.metrics)
        self.exchanges: list[Exchange] = []

    def begin(self, method: str, path: str, body: Any = None, **headers: str) -> Exchange:
        content = b"" if body is None else json.dumps(body).encode()
        made = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        self.exchanges.append(Exchange(self.app, method, path, body=content, headers=made))
        return self.exchanges[-1]

    def embed(self, given: Any = "hello", *, headers: dict[str, str] | None = None, **fields: Any) -> Exchange:
        return self.begin("POST", EMBEDDINGS, {"input": given} | fields, **(headers or {}))

    def rank(self, query: str, **fields: Any) -> Exchange:
        return self.begin("POST", "/v1/rerank", {"query": query} | fields)

    async def held(self) -> None:
        await asyncio.to_thread(self.gate.wait_held)

    async def look(self, request_id: str) -> dict[str, Any]:
        return (await self.begin("GET", f"/v1/requests/{request_id}").end()).json()

    async def ended(self, request_id: str) -> dict[str, Any]:
        for request in self.engine.registry.requests():
            if request.id == request_id:
                async with asyncio.timeout(LIMIT):
                    await asyncio.shield(asyncio.wrap_future(request.ended))
        return await self.look(request_id)


@asynccontextmanager
async def open_site(
    pooling: Pooling = Pooling.MEAN, *, template: str | None = None, **config: Any
) -> AsyncIterator[Site]:
    site = Site(pooling, template, **config)
    try:
        yield site
    finally:
        site.gate.open()
        for exchange in site.exchanges:
            async with exchange:
                pass
        await asyncio.to_thread(site.engine.close)
        await site.app.state.server.workers.wait_closed()
    assert site.engine.failure is None
    assert site.embedder.open_seqs == []
    assert site.engine.counts() == (0, 0, 0, 0)
