"""The state that the routes share: the engine once it is loaded, and how the server was set up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Protocol

from pydantic import Field

from pyllmcancel.chat.template import ChatTemplate
from pyllmcancel.constraints.bounded import BoundedGuidance
from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.engine.engine import DOES_NOT_GENERATE
from pyllmcancel.errors import Error, InvalidRequestError, QueueFullError
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.workers import Workers
from pyllmcancel.server.limits import WORKERS
from pyllmcancel.server.live.feed import Feed
from pyllmcancel.server.live.texts import Texts
from pyllmcancel.server.preparing import Preparations
from pyllmcancel.server.running.metrics import EngineMetrics
from pyllmcancel.server.wire.fields import Answer
from pyllmcancel.server.wire.tokens import TextReader
from pyllmcancel.shares import Shares

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel._native import Model
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.engine.loading import Loading
    from pyllmcancel.server.config import ServerConfig

logger = logging.getLogger("pyllmcancel.server")

TOOL_USE_TEMPLATE = "tokenizer.chat_template.tool_use"  # in a model's metadata
STALLED_AFTER_SECONDS = 60.0
PACKAGED_MODEL_NAME = "stdlib-coder"


class Healthy(Answer):
    """The counts are left out where there are several owners; `stores` is there, and false, while the disk is full."""

    status: Literal["ok"]
    stores: NotRequired[Annotated[bool, Field(default=True, description="false: the disk is full.")]]
    waiting: NotRequired[Annotated[int, Field(default=0)]]
    running: NotRequired[Annotated[int, Field(default=0)]]


class Unhealthy(Answer):
    """Not OpenAI's shape: it is a state, and nothing that a request did wrong."""

    status: Literal["loading", "failed", "stalled", "draining"]
    stage: NotRequired[Literal["downloading", "loading"]]  # of what progress is told
    progress: NotRequired[Annotated[float | None, Field(default=None, ge=0, le=1)]]
    error: str | None


class Member(Protocol):
    """A server among others: a `pyllmcancel.server.fleet.fleet.Fleet`, which stands above what is here."""

    def start(self) -> None:
        """The engine is there."""

    async def close(self) -> None: ...


Asked = Literal["find", "get", "cancel", "delete", "input", "history"]


class Responses(Protocol):
    """The responses that are kept here: a `pyllmcancel.server.responses.stored.Responses`, which stands above this."""

    @property
    def full(self) -> bool:
        """Nothing is stored at the moment: the disk is full."""

    async def act(self, owner: str, response_id: str, asked: Asked, patience: float) -> dict[str, Any]: ...


class ServerState:
    """Loading, serving, closing. Touched by the event loop only."""

    def __init__(self, config: ServerConfig, metrics: EngineMetrics | None = None) -> None:
        self.config = config
        self.metrics = metrics or EngineMetrics()
        self.created = int(time.time())
        self.feed = Feed(self.metrics, Shares(config.limits.max_event_clients, several=config.shared))
        self.chat_template = ChatTemplate(None)  # the model's, once there is one; each use may refuse
        self.preparations = Preparations(shared=config.shared)
        self._guidance: BoundedGuidance | None = None
        self.model_name = ""
        self.aliases: tuple[str, ...] = ()
        self.workers = Workers(WORKERS, "pyllmcancel-input", per_owner=WORKERS - config.shared)
        self._texts: TextReader | None = None
        self.eog_tokens: tuple[int, ...] = ()  # the model's tokens that end an answer, once there is a model
        self._engine: Engine | None = None
        self._loading: Loading | None = None
        self._load_error: str | None = None
        self._closing = False
        self.leaving = False  # set by `process.Server`: it still serves, but who can had better go elsewhere
        self.fleet: Member | None = None  # set once, before anybody is served
        self.responses: Responses | None = None  # likewise
        # Set by `process.Server`: a server that will never have a model had better end, and so had one whose
        # engine has died. The second is called by the engine's thread, when all requests have their endings.
        self.on_load_failure: Callable[[], None] | None = None
        self.on_engine_death: Callable[[], None] | None = None
        self.on_ready: Callable[[Engine], None] | None = None  # set by `process.Server` too: the model is there

    @property
    def engine(self) -> Engine:
        """The engine; ApiError 503 while there is none."""
        if self._engine is None:
            doing = "being downloaded" if self._stage == "downloading" else "loading"
            message = self._load_error or f"the model is {doing} ({self._progress:.0%})"
            raise ApiError(503, message, "server_error", code="loading" if self._load_error is None else "load_failed")
        return self._engine

    @property
    def texts(self) -> TextReader:
        """Makes tokens of texts; ApiError 503 while there is no engine."""
        _ = self.engine
        assert self._texts is not None
        return self._texts

    @property
    def n_ctx(self) -> int:
        """Most tokens of a request; 0 while there is no engine."""
        return 0 if self._engine is None else self._engine.n_ctx

    @property
    def _progress(self) -> float:
        return 0.0 if self._loading is None else self._loading.progress

    @property
    def _stage(self) -> Literal["downloading", "loading"]:
        return "loading" if self._loading is None else self._loading.stage

    @property
    def guidance(self) -> BoundedGuidance:
        """Compiles schemas and grammars for the model; ApiError 503 while there is no engine.

        InvalidRequestError of a model that does not generate: its vocabulary is not read.
        """
        _ = self.engine
        if self._guidance is None:
            raise InvalidRequestError(DOES_NOT_GENERATE, "model")
        return self._guidance

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for a name that is not served, where only the model's own names are."""
        if self.config.strict_model and name and name not in (self.model_name, *self.aliases):
            message = f"the model {name!r} is not served here, but {self.model_name!r} is"
            raise ApiError(404, message, param="model", code="model_not_found")

    def adopt(self, engine: Engine) -> None:
        """Serve with this engine from now on."""
        self._take(engine)
        self._engine = engine

    def _take(self, engine: Engine) -> None:
        """Make what belongs to its model."""
        model = engine.model
        given = self.config.chat_template
        self.chat_template = ChatTemplate(
            given or model.chat_template,
            _special(model, "bos"),
            _special(model, "eos"),
            tool_use_source="" if given else model.metadata.get(TOOL_USE_TEMPLATE, ""),
            jinja=self.config.chat.jinja,
        )
        path = engine.config.model
        self.aliases = engine.config.aliases()
        self.model_name = next(iter(self.aliases), path.stem if path is not None else PACKAGED_MODEL_NAME)
        self.metrics.watch(engine, self.model_name)
        texts = Texts(model) if self.config.expose_prompts else None
        if texts is not None:
            engine.add_observer(texts)
        self.feed.watch(engine, texts)
        self.eog_tokens = tuple(model.eog_tokens())
        self._texts = TextReader(engine)
        if engine.n_embd is None:
            self._guidance = BoundedGuidance(Guidance(model))

    def adopt_when_loaded(self, loading: Loading) -> asyncio.Task[None]:
        """Serve with the engine that is on its way, from when it is there; health says 503 until then."""
        self._loading = loading  # before the task runs: the server may be closed first
        return asyncio.create_task(self._adopt(loading))

    async def _adopt(self, loading: Loading) -> None:
        try:
            engine = await asyncio.wrap_future(loading.future)
            if self._closing:
                return  # it had come too far to be given up
            self._take(engine)
            await self.prepare()
            if self._closing:
                return  # its listeners are closed by now
            self._engine = engine
            engine.stopped.add_done_callback(self._on_stopped)
            if self.fleet is not None:
                self.fleet.start()
            await asyncio.to_thread(self._prepare_template)
        except Exception as error:
            # Anything: a server that says for ever that it is loading is worse than one that ends.
            self._load_error = str(error)
            if not self._closing:
                ours = isinstance(error, Error | OSError | ImportError)
                logger.critical("the model could not be loaded: %s", error, exc_info=None if ours else error)
                if self.on_load_failure is not None:
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
        if self.on_ready is not None:
            self.on_ready(engine)

    def _on_stopped(self, stopped: Future[None]) -> None:
        if stopped.exception() is not None and self.on_engine_death is not None:
            self.on_engine_death()

    async def prepare(self) -> None:
        """Make what takes its time once, before anybody is served: later it would hold up those who are.

        The processes, which hold up nobody, come up meanwhile.
        """
        await asyncio.to_thread(self._prepare)

    def _prepare(self) -> None:
        self.chat_template.begin()
        if self._guidance is not None:
            self._guidance.prepare()

    def _prepare_template(self) -> None:
        """Have it ready before the first chat. If it is bad, that is no reason not to complete texts."""
        with suppress(InvalidRequestError, QueueFullError):
            self.chat_template.prepare()

    async def end_helpers(self) -> None:
        """End what is in preparation, and the processes where templates and schemas are tried. Idempotent."""
        self.preparations.close()
        await asyncio.to_thread(self.chat_template.close)
        if self._guidance is not None:
            await asyncio.to_thread(self._guidance.close)
        await self.preparations.wait_closed()

    async def close(self, drain: float) -> None:
        """Stop accepting, drain, cancel what is left, stop computing. Idempotent; cancels a load in progress."""
        self._closing = True
        self.workers.close()
        self.preparations.close()
        if self._loading is not None:
            self._loading.give_up()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close, drain)
        await self.end_helpers()

    def health(self) -> Healthy | Unhealthy:
        """Return whether the server can serve, and why not."""
        if self._engine is None:
            status: Literal["loading", "failed"] = "loading" if self._load_error is None else "failed"
            told: Unhealthy = {"status": status, "progress": round(self._progress, 3), "error": self._load_error}
            if status == "loading":
                told["stage"] = self._stage
            return told
        stalled = self._engine.stalled_for()
        if self._engine.failure is not None:
            return {"status": "failed", "error": self._engine.failure}
        if stalled > STALLED_AFTER_SECONDS:
            return {"status": "stalled", "error": f"the running step began {stalled:.0f} s ago"}
        if self.leaving:
            return {"status": "draining", "error": None}
        healthy: Healthy = {"status": "ok"}
        if self.responses is not None and self.responses.full:
            healthy["stores"] = False
        if self.config.shared:  # no key is asked for here, and owners must not learn of each other
            return healthy
        counts = self._engine.counts()
        return {**healthy, "waiting": counts.waiting, "running": counts.running}


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


def _special(model: Model, name: str) -> str:
    token = model.special_tokens.get(name)
    return "" if token is None else model.piece(token, special=True).decode("utf-8", "replace")
