"""The state that the routes share: the engine after it is loaded, and the server's configuration."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal, NotRequired

from fastapi import Request
from prometheus_client import Gauge
from pydantic import Field

from pyllmcancel.chat.template import ChatTemplate
from pyllmcancel.constraints.bounded import BoundedGuidance
from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.loading import Loading
from pyllmcancel.errors import BusyError, Error, InvalidRequestError
from pyllmcancel.events import RequestStatus
from pyllmcancel.media.room import MediaRoom
from pyllmcancel.media.values import new_marker
from pyllmcancel.pooling import DOES_NOT_GENERATE
from pyllmcancel.requests.request import Request as EngineRequest
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.digests import server_digest
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import KeyRing
from pyllmcancel.server.http.workers import Workers
from pyllmcancel.server.limits import MAX_STREAMS, PREPARERS, WORKERS
from pyllmcancel.server.live.feed import Feed
from pyllmcancel.server.live.texts import Texts
from pyllmcancel.server.media.fetching import Fetcher
from pyllmcancel.server.pile_up import PileUp
from pyllmcancel.server.running.metrics import EngineMetrics
from pyllmcancel.server.streams.kept import KeptAnswer, conversation_key
from pyllmcancel.server.streams.kept_answers import KeptAnswers, StreamGauges
from pyllmcancel.server.wire.fields import Answer
from pyllmcancel.server.wire.tokens import TextReader, special_text
from pyllmcancel.shares import Shares

logger = logging.getLogger("pyllmcancel.server")

TOOL_USE_TEMPLATE = "tokenizer.chat_template.tool_use"  # in a model's metadata
STALLED_AFTER_SECONDS = 60.0
PACKAGED_MODEL_NAME = "stdlib-coder"
MAX_NAMED = 3  # limit of requests in a line of the log


class Healthy(Answer):
    """The body of a healthy answer. For several owners it has no counts; `stores` is false while the disk is full."""

    status: Literal["ok"]
    stores: NotRequired[Annotated[bool, Field(default=True, description="False while the disk is full.")]]
    waiting: NotRequired[Annotated[int, Field(default=0)]]
    running: NotRequired[Annotated[int, Field(default=0)]]
    slots: NotRequired[Annotated[int, Field(description="For a front: requests that run at once.")]]
    now: NotRequired[Annotated[float, Field(description="For a front: the time on the monotonic clock.")]]
    boot: NotRequired[Annotated[str, Field(description="For a front: another one after each start.")]]


class Unhealthy(Answer):
    """The body of an unhealthy answer. It is not OpenAI's error shape: it is a state, and no fault of a request."""

    status: Literal["loading", "failed", "stalled", "draining"]
    stage: NotRequired[Literal["downloading", "loading"]]  # the stage of the progress
    progress: NotRequired[Annotated[float | None, Field(default=None, ge=0, le=1)]]
    error: str | None


class ServerState:
    """The state of a server that is loading, serving or closing. Used by the event loop only."""

    def __init__(self, config: ServerConfig, metrics: EngineMetrics | None = None) -> None:
        self.config = config
        self.metrics = metrics or EngineMetrics()
        self.created = int(time.time())
        self.keys = KeyRing(config)
        self.feed = Feed(self.metrics, Shares(config.limits.max_event_clients, self.keys.owners))
        self.chat_template = ChatTemplate(None)  # the model's, once it is loaded; each use may raise
        # Apart from `workers`: bodies must not wait for a template, a schema or a picture: decoding takes seconds.
        self.preparers = Workers(PREPARERS, "pyllmcancel-prepare", self.keys.owners)
        self.decoders = Workers(PREPARERS, "pyllmcancel-decode", self.keys.owners)
        self.fillers = Workers(PREPARERS, "pyllmcancel-fill", self.keys.owners)
        self.pile_up = PileUp()
        self.streams = KeptAnswers[KeptAnswer](MAX_STREAMS, self.keys.owners)
        self.fetcher = Fetcher(config.media.max_bytes)
        self.media_room = MediaRoom(config.media.max_prepared, self.keys.owners)
        # In /props, for prompts in which clients write it themselves. llama-server reads the same variable.
        self.media_marker = os.environ.get("LLAMA_MEDIA_MARKER") or new_marker()
        self._guidance: BoundedGuidance | None = None
        self.model_name = ""
        self.aliases: tuple[str, ...] = ()
        self.workers = Workers(WORKERS, "pyllmcancel-input", self.keys.owners)
        self._texts: TextReader | None = None
        self.eog_tokens: tuple[int, ...] = ()  # the model's tokens that end an answer, once it is loaded
        self._engine: Engine | None = None
        self._digest: asyncio.Task[str | None] | None = None  # made once it is asked for
        self._loading: Loading | None = None
        self._load_error: str | None = None
        self._closing = False
        # Set by the application: whether the store's disk is full; what is made beside the load, before any request.
        self.is_store_full: Callable[[], bool] = lambda: False
        self.beside_loading: asyncio.Task[Any] | None = None
        # Set by `process.Server`: still serving, but load balancers should send new requests elsewhere; the calls at
        # a failed load, at the engine's death, by its thread after all endings, at a load that goes on though it was
        # given up, and when the model is loaded.
        self.leaving = False
        self.on_load_failure: Callable[[], object] = lambda: None
        self.on_engine_death: Callable[[], object] = lambda: None
        self.on_stuck_load: Callable[[], object] = lambda: None
        self.on_ready: Callable[[Engine], object] = lambda _: None

    @property
    def engine(self) -> Engine:
        """The engine; ApiError 503 while it is not loaded."""
        if self._engine is None:
            doing = "being downloaded" if self._stage == "downloading" else "loading"
            message = self._load_error or f"the model is {doing} ({self._progress:.0%})"
            raise ApiError(503, message, "server_error", code="loading" if self._load_error is None else "load_failed")
        return self._engine

    async def digest(self) -> str | None:
        """Return the digest of everything that answers depend on besides their requests; None if they may differ."""
        if self._digest is None:
            self._digest = asyncio.create_task(asyncio.to_thread(server_digest, self.engine, self.config))
        try:
            return await asyncio.shield(self._digest)
        except OSError:  # a file of the model has gone
            return None

    @property
    def texts(self) -> TextReader:
        """The tokenizer of texts; ApiError 503 while the engine is not loaded."""
        _ = self.engine
        assert self._texts is not None
        return self._texts

    @property
    def n_ctx(self) -> int:
        """The limit of a request's tokens; 0 while the engine is not loaded."""
        return 0 if self._engine is None else self._engine.n_ctx

    @property
    def _progress(self) -> float:
        return 0.0 if self._loading is None else self._loading.progress

    @property
    def _stage(self) -> Literal["downloading", "loading"]:
        return "loading" if self._loading is None else self._loading.stage

    @property
    def guidance(self) -> BoundedGuidance:
        """The compiler of schemas and grammars for the model; ApiError 503 while the engine is not loaded.

        Raises InvalidRequestError for a model that does not generate, because its vocabulary is not read.
        """
        _ = self.engine
        if self._guidance is None:
            raise InvalidRequestError(DOES_NOT_GENERATE, "model")
        return self._guidance

    def check_model(self, name: str | None, *, strict: bool = False) -> None:
        """Raise ApiError 404 for a name that is not served, if only the model's own names are."""
        if (strict or self.config.strict_model) and name and name not in (self.model_name, *self.aliases):
            message = f"the model {name!r} is not served here, but {self.model_name!r} is"
            raise ApiError(404, message, param="model", code="model_not_found")

    def preparing(self, owner: str, stream: str) -> list[EngineRequest]:
        """Return the requests that are not accepted yet, and whose stream may have this name."""
        registry = self.engine.registry
        by_id = [one for one in registry.requests(owner) if (one.id, one.status) == (stream, RequestStatus.PREPARING)]
        return by_id + registry.preparing(conversation_key(stream), owner)

    def adopt(self, engine: Engine) -> None:
        """Serve with this engine from now on."""
        self._take(engine)
        self._engine = engine

    @property
    def chats(self) -> bool:
        """True if the model is made for conversations: it generates text, and a chat template is known for it."""
        return self.engine.n_embd is None and not self.chat_template.is_default

    def _take(self, engine: Engine) -> None:
        """Make the parts that belong to the engine's model."""
        model, config = engine.model, self.config
        given = self.config.chat_template
        advice = {name: value for name, value in engine.advised_sampling.items() if name not in config.sampling_given}
        self.config = replace(config, sampling=replace(config.sampling, **advice))
        self.chat_template = ChatTemplate(
            given or model.chat_template,
            special_text(model, "bos"),
            special_text(model, "eos"),
            tool_use_source="" if given else model.metadata.get(TOOL_USE_TEMPLATE, ""),
            jinja=self.config.chat.jinja,
        )
        path = engine.config.model
        self.aliases = engine.config.aliases()
        self.model_name = next(iter(self.aliases), path.stem if path is not None else PACKAGED_MODEL_NAME)
        self.metrics.watch(engine, self.model_name)
        # The metrics of streams and of the feed are read at each scrape, in the event loop.
        registry, ring = self.metrics.registry, self.feed.ring
        registry.register(StreamGauges(self.streams))
        text = "Events that readers of the feed can take up again."
        Gauge("pyllmcancel_events_kept", text, registry=registry).set_function(lambda: ring.newest - ring.first + 1)
        texts = Texts(model) if self.config.expose_prompts else None
        if texts is not None:
            engine.add_observer(texts)
        self.feed.watch(engine, texts)
        self.eog_tokens = tuple(model.eog_tokens())
        self._texts = TextReader(engine)
        if engine.n_embd is None:
            self._guidance = BoundedGuidance(Guidance(model))

    def adopt_when_loaded(self, loading: Loading) -> asyncio.Task[None]:
        """Serve with the engine when it is loaded; until then the health check answers 503."""
        self._loading = loading  # set before the task runs: the server may be closed first
        return asyncio.create_task(self._adopt(loading))

    async def _adopt(self, loading: Loading) -> None:
        try:
            engine = await asyncio.wrap_future(loading.future)
            if self._closing:
                return  # the load had come too far to be given up
            self._take(engine)
            await self.prepare()
            if self._closing:
                return  # its listeners are closed by now
            self._engine = engine
            engine.stopped.add_done_callback(self._on_stopped)
            await asyncio.to_thread(self._prepare_template)
        except Exception as error:
            # Any exception: a server that reports loading for ever is worse than one that ends.
            self._load_error = str(error)
            if not self._closing:
                ours = isinstance(error, Error | OSError | ImportError)
                logger.critical("the model could not be loaded: %s", error, exc_info=None if ours else error)
                self.on_load_failure()
            return
        if self._closing:
            return  # while the template was prepared; its listeners are closed by now
        logger.info(
            "%s is ready after %.1f s: %s, %s memory, %s tokens for a request at most, %d at once",
            self.model_name,
            time.monotonic() - loading.began,
            engine.model.description,
            engine.model.memory_kind,
            f"{engine.n_ctx:,}",
            engine.config.parallel,
        )
        self.on_ready(engine)

    def _on_stopped(self, stopped: Future[None]) -> None:
        if stopped.exception() is not None:
            self.on_engine_death()

    async def prepare(self) -> None:
        """Make everything that takes time once, before any request is served: later it would hold up running requests.

        Helper processes start meanwhile, without holding anything up.
        """
        await asyncio.to_thread(self._prepare)
        if self.beside_loading is not None:
            await asyncio.shield(self.beside_loading)

    def _prepare(self) -> None:
        self.chat_template.begin()
        if self._guidance is not None:
            self._guidance.prepare()

    def _prepare_template(self) -> None:
        """Prepare the template before the first chat. A bad template must not keep texts from being completed."""
        with suppress(InvalidRequestError, BusyError):
            self.chat_template.prepare()

    @property
    def _all_workers(self) -> tuple[Workers, ...]:
        return self.workers, self.preparers, self.decoders, self.fillers

    async def end_helpers(self) -> None:
        """End the work for requests in preparation, and the processes that check templates and schemas. Idempotent."""
        for workers in self._all_workers:
            workers.close()
        await asyncio.to_thread(self.chat_template.close)
        if self._guidance is not None:
            await asyncio.to_thread(self._guidance.close)
        for workers in self._all_workers:
            await workers.wait_closed()

    async def close(self, drain: float) -> None:
        """Serve nothing new, cancel a load, drain, cancel the remaining requests, stop computing. Idempotent."""
        self._closing = True
        for workers in self._all_workers:
            workers.close()
        if self._loading is not None:
            self._loading.give_up()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close, drain)
        await self.end_helpers()

    def remaining(self, drain: float) -> str:
        """Return the line of the log that says what the end of the server waits for, during `drain` seconds."""
        if self._engine is None:
            return "ending: the model was not ready"
        live = [request.id for request in self._engine.registry.requests()]
        if not live:
            return "ending: there is no live request"
        named = ", ".join(live[:MAX_NAMED]) + (", …" if len(live) > MAX_NAMED else "")
        requests = f"{len(live)} live request{'s' if len(live) > 1 else ''} ({named})"
        if drain <= 0:
            return f"ending: {requests} cancelled"
        return f"draining: {requests} may go on for {drain:g} s, and end then; a second signal ends the drain"

    def health(self, *, to_front: bool = False) -> Healthy | Unhealthy:
        """Return whether the server can serve, and why not; to a front with all counts."""
        if self._engine is None:
            status: Literal["loading", "failed"] = "loading" if self._load_error is None else "failed"
            unhealthy: Unhealthy = {"status": status, "progress": round(self._progress, 3), "error": self._load_error}
            if status == "loading":
                unhealthy["stage"] = self._stage
            return unhealthy
        stalled = self._engine.stalled_for()
        if self._engine.failure is not None:
            return {"status": "failed", "error": self._engine.failure}
        if stalled > STALLED_AFTER_SECONDS:
            return {"status": "stalled", "error": f"the running step began {stalled:.0f} s ago"}
        if self.leaving:
            return {"status": "draining", "error": None}
        healthy: Healthy = {"status": "ok"}
        if self.is_store_full():
            healthy["stores"] = False
        if self.config.shared and not to_front:  # no key is needed here, and owners must not learn of each other
            return healthy
        counts = self._engine.counts()
        healthy |= {"waiting": counts.waiting, "running": counts.running}
        if to_front:
            healthy |= {"slots": self._engine.config.parallel, "now": time.monotonic(), "boot": self.feed.frames.boot}
        return healthy


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state
