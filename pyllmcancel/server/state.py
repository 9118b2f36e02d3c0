"""What the routes share: the engine once it is loaded, and how the server was set up."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pyllmcancel.chat_template import ChatTemplate
from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.engine import Engine
from pyllmcancel.errors import Error, InvalidRequestError
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.metrics import EngineMetrics

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel._native import Model
    from pyllmcancel.config import EngineConfig

logger = logging.getLogger("pyllmcancel.server")

STALLED_AFTER_SECONDS = 60.0
PROGRESS_EVERY_SECONDS = 1.0
PACKAGED_MODEL_NAME = "stdlib-coder"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the HTTP side is set up.

    Attributes
    ----------
    session_by
        Where a session comes from when the request names none: ``explicit`` (nowhere), ``user`` (the body's `user`,
        `safety_identifier` or `prompt_cache_key`) or ``client-ip``.
    api_keys
        Any of them opens; empty: no key is asked for.
    strict_model
        A request for a model that is not served here is refused; otherwise any name is served.
    tags
        Words about the model for its clients, without any effect.
    drain
        Seconds that live requests may go on after SIGTERM.
    sampling
        What a request gets where it leaves a parameter open; its seed is not looked at.
    seed
        Seed of requests that name none; None draws one for each.
    n_predict
        Most tokens of an answer, whatever its request asks for; None sets no limit.
    chat_template
        Jinja2 to use instead of the model's own.
    sse_ping_interval
        Seconds of silence after which a stream gets a comment; 0: never.
    max_body
        Longest request body, in bytes.
    cors_origins
        Origins whose pages may use the server; ``*`` for all, ``localhost`` for this machine's.
    slots, metrics, ui
        Whether ``/slots`` (which shows prompts), ``/metrics`` and the live page are there.
    """

    engine: EngineConfig
    session_by: str = "explicit"
    api_keys: tuple[str, ...] = ()
    strict_model: bool = False
    tags: tuple[str, ...] = ()
    drain: float = 5.0
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    n_predict: int | None = None
    chat_template: str | None = None
    sse_ping_interval: float = 15.0
    max_body: int = 32 << 20
    cors_origins: tuple[str, ...] = ()
    slots: bool = True
    metrics: bool = True
    ui: bool = True

    def request_defaults(self) -> SamplingParams:
        """What the next request gets where it leaves a parameter open."""
        return self.sampling.with_seed(secrets.randbits(32) if self.seed is None else self.seed)

    def limited(self, max_tokens: int | None) -> int | None:
        """The most tokens that an answer may have for which its request allows `max_tokens`."""
        limits = [limit for limit in (max_tokens, self.n_predict) if limit is not None]
        return min(limits, default=None)


class ServerState:
    """Loading, serving, closing. Touched by the event loop only, but for `progress`."""

    def __init__(self, config: ServerConfig, metrics: EngineMetrics | None = None) -> None:
        self.config = config
        self.metrics = metrics or EngineMetrics()
        # Written by the loading thread.
        self.progress = 0.0
        self._reported_at = 0.0
        self.created = int(time.time())
        self._chat_template = ChatTemplate(None)
        self._chat_template_error: str | None = None
        self.model_name = ""
        self.aliases: tuple[str, ...] = ()
        self._engine: Engine | None = None
        self._load_error: str | None = None
        self._closing = False
        # Set by whoever runs the process: a server that will never have a model had better end.
        self.on_load_failure: Callable[[], None] | None = None

    @property
    def engine(self) -> Engine:
        """The engine; ApiError 503 while there is none."""
        if self._engine is None:
            message = self._load_error or f"the model is loading ({self.progress:.0%})"
            raise ApiError(503, message, "server_error", code="loading" if self._load_error is None else "load_failed")
        return self._engine

    @cached_property
    def guidance(self) -> Guidance:
        """Compiles schemas and grammars for the model."""
        return Guidance(self.engine.model)

    @cached_property
    def eog_tokens(self) -> tuple[int, ...]:
        """The model's tokens that end an answer."""
        model = self.engine.model
        return tuple(token for token in range(model.n_vocab) if model.is_eog(token))

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's; InvalidRequestError if it cannot be compiled: that is no reason not to complete texts."""
        if self._chat_template_error is not None:
            raise InvalidRequestError(self._chat_template_error, "chat_template")
        return self._chat_template

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for a name that is not served, where only the model's own names are."""
        if self.config.strict_model and name and name not in (self.model_name, *self.aliases):
            message = f"the model {name!r} is not served here, but {self.model_name!r} is"
            raise ApiError(404, message, param="model", code="model_not_found")

    def adopt(self, engine: Engine) -> None:
        """Serve with this engine from now on."""
        model = engine.model
        template = self.config.chat_template or model.chat_template
        try:
            self._chat_template = ChatTemplate(template, _special(model, "bos"), _special(model, "eos"))
        except InvalidRequestError as error:
            logger.error("%s; chats will be refused", error)
            self._chat_template_error = str(error)
        path = engine.config.model
        self.aliases = engine.config.aliases()
        self.model_name = next(iter(self.aliases), path.stem if path is not None else PACKAGED_MODEL_NAME)
        self.metrics.watch(engine)
        self._engine = engine

    async def load(self) -> None:
        """Load the model in a thread; health says 503 until then."""
        began = self._reported_at = time.monotonic()
        logger.info("loading %s", self.config.engine.model or "the packaged model")
        try:
            engine = await asyncio.to_thread(
                Engine.load, self.config.engine, observer=self.metrics, progress=self._on_progress
            )
        except Exception as error:
            # Anything: a server that says for ever that it is loading is worse than one that ends.
            self._load_error = str(error)
            if not self._closing:
                ours = isinstance(error, Error | OSError)
                logger.critical("the model could not be loaded: %s", error, exc_info=None if ours else error)
                if self.on_load_failure is not None:
                    self.on_load_failure()
            return
        self.adopt(engine)
        logger.info(
            "%s is ready after %.1f s: %s, %s memory, %s tokens for a request at most, %d at once",
            self.model_name,
            time.monotonic() - began,
            engine.model.description,
            engine.model.memory_kind,
            f"{engine.n_ctx:,}",
            engine.config.parallel,
        )

    def _on_progress(self, fraction: float) -> bool:
        """Called by the loading thread, often."""
        self.progress = fraction
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_EVERY_SECONDS:
            self._reported_at = now
            logger.info("loading: %.0f %%", fraction * 100)
        return not self._closing

    async def close(self, drain: float) -> None:
        """Stop accepting, drain, cancel what is left, stop computing. Idempotent; cancels a load in progress."""
        self._closing = True
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close, drain)

    def health(self) -> tuple[bool, dict[str, object]]:
        """Whether the server can serve, and the body that says so."""
        if self._engine is None:
            status = "loading" if self._load_error is None else "failed"
            return False, {"status": status, "progress": round(self.progress, 3), "error": self._load_error}
        stalled = self._engine.stalled_for()
        if self._engine.failure is not None:
            return False, {"status": "failed", "error": self._engine.failure}
        if stalled > STALLED_AFTER_SECONDS:
            return False, {"status": "stalled", "error": f"the running step began {stalled:.0f} s ago"}
        counts = self._engine.counts()
        return True, {"status": "ok", "waiting": counts.waiting, "running": counts.running}


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


def _special(model: Model, name: str) -> str:
    token = model.special_tokens.get(name)
    return "" if token is None else model.piece(token, special=True).decode("utf-8", "replace")
