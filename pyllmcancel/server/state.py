"""What the routes share: the engine once it is loaded, and how the server was set up."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyllmcancel.chat_template import ChatTemplate
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the HTTP side is set up.

    Attributes
    ----------
    session_by
        Where a session comes from when the request names none: ``explicit`` (nowhere), ``user`` (the body's `user`,
        `safety_identifier` or `prompt_cache_key`) or ``client-ip``.
    drain
        Seconds that live requests may go on after SIGTERM.
    """

    engine: EngineConfig
    session_by: str = "explicit"
    api_keys: tuple[str, ...] = ()
    drain: float = 5.0
    sampling: SamplingParams = field(default_factory=SamplingParams)


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

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's; InvalidRequestError if it cannot be compiled: that is no reason not to complete texts."""
        if self._chat_template_error is not None:
            raise InvalidRequestError(self._chat_template_error, "chat_template")
        return self._chat_template

    def adopt(self, engine: Engine) -> None:
        """Serve with this engine from now on."""
        model = engine.model
        try:
            self._chat_template = ChatTemplate(model.chat_template, _special(model, "bos"), _special(model, "eos"))
        except InvalidRequestError as error:
            logger.error("%s; chats will be refused", error)
            self._chat_template_error = str(error)
        path = engine.config.model
        self.model_name = engine.config.alias or (path.stem if path is not None else "stdlib-coder")
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
            "%s is ready after %.1f s: %s, %s memory, %s tokens of context, %d at once",
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
