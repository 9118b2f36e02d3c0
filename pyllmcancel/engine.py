"""The engine: submit a request, read its stream, cancel it. Everything below is reached through here.

The life of a request: ``Engine.submit`` → ``Registry.accept`` (session map, waiting queue) → ``EngineLoop`` (admit,
step, hand out tokens) → ``Endings.conclude``. A cancel goes ``Engine.cancel`` → ``Cancellation.request`` (the flag that
the compiled core reads) → ``Endings.conclude``, by the engine thread or, for a request that still waits, by the caller.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from pyllmcancel.cancellation import Cancellation, CancelReason
from pyllmcancel.choices import ChoiceMaker
from pyllmcancel.config import CACHE_TYPES, FLASH_ATTENTION, EngineConfig
from pyllmcancel.embeddings.pooling import Pooling, pooling_of
from pyllmcancel.endings import Endings
from pyllmcancel.engine_loop import EngineLoop
from pyllmcancel.engine_thread import end_unclosed, work
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, said
from pyllmcancel.models import packaged_model_path
from pyllmcancel.observer import NullObserver, StepTrace
from pyllmcancel.reaper import Reaper
from pyllmcancel.registry import Counts, Registry
from pyllmcancel.request import GenerationParams, Request
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.scheduler import Occupancy, Scheduler
from pyllmcancel.token_stream import FORKED, AsyncStream, LoopSink, Sink, ThreadSink, ThreadStream

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from pyllmcancel._native import Context, Embedder, Model
    from pyllmcancel.embeddings.loop import EmbeddingLoop
    from pyllmcancel.observer import Observer

logger = logging.getLogger("pyllmcancel.engine")

TRACED_STEPS = 1024


class Engine:
    """Owns a context, and the one thread that computes on it. Every method may be called from any thread.

    One that is dropped, or still open when the interpreter ends, is closed, with a ResourceWarning. In a forked child,
    where there is no such thread, whatever would wait for it raises EngineClosedError.

    Parameters
    ----------
    context
        A context that nobody else uses.
    config
        Sizes, limits and targets.
    observer
        Told of everything that happens; see `pyllmcancel.observer`.
    native
        The module that made `context`, for its `CancelFlag` and `Sampler`; by default the compiled one.

    Attributes
    ----------
    stopped : concurrent.futures.Future of None
        Done when the engine thread computes no more: with None after `close`, with the exception that it died of else.
        Every request has got its ending by then.

    Examples
    --------
    >>> with Engine.load(EngineConfig()) as engine:  # doctest: +SKIP
    ...     with engine.generate("def hello_world():", max_tokens=16) as stream:
    ...         print("".join(delta.text for delta in stream))
    """

    def __init__(
        self,
        context: Context | Embedder,
        config: EngineConfig | None = None,
        *,
        observer: Observer | None = None,
        native: Any = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.model: Model = context.model
        self.trace = StepTrace(TRACED_STEPS)
        self.registry = Registry(self.config.max_queue)
        self._native = native or compiled_module()
        self._choice_maker = ChoiceMaker(self.model, self._native)
        self._context = context
        self._observer = observer or NullObserver()
        self._endings = Endings(self.registry, self._observer)
        self._loop = self._make_loop(context)
        self._reaper = Reaper(self._endings.cancel, self._endings.shut_down)
        self.stopped: Future[None] = Future()
        self._pid = os.getpid()
        # None of its threads knows the engine itself, or nobody could ever drop it.
        self._thread = threading.Thread(
            target=work, args=(self._loop, self.stopped), name="pyllmcancel-engine", daemon=True
        )
        self._thread.start()
        self._unclosed = weakref.finalize(self, end_unclosed, weakref.ref(self), self._reaper, self._pid)

    @classmethod
    def load(
        cls,
        config: EngineConfig | None = None,
        *,
        observer: Observer | None = None,
        progress: Callable[[float], bool | None] | None = None,
    ) -> Engine:
        """Load a model and start an engine on it.

        Parameters
        ----------
        progress
            Called with a fraction in [0, 1]; returning False cancels the load.

        Raises
        ------
        ModelLoadError, LoadCancelled, ContextError
        """
        native = compiled_module()
        config = config or EngineConfig()
        model = native.Model.load(
            config.model or packaged_model_path(),
            n_gpu_layers=config.n_gpu_layers,
            mmap=config.mmap,
            mlock=config.mlock,
            lora=config.lora,
            progress=progress,
        )
        pooling = pooling_of(model, config.pooling, required=config.embeddings)
        if pooling is not Pooling.NONE:
            from pyllmcancel.embeddings.engine import EmbeddingEngine  # which is an Engine, and so imports this module

            return EmbeddingEngine.on(model, pooling, config, native=native, observer=observer)
        # Idle prefixes beside the running sequences: a part of divided cells each, a whole state in other memories.
        unified = config.kv_unified or not model.can_divide_cells
        n_cached = config.cached_sequences if model.memory_kind == "attention" and unified else 0
        context = native.Context(
            model,
            n_ctx=config.context_size(model.n_ctx_train),
            n_seq_max=config.parallel + n_cached,
            n_batch=max(config.step_tokens(), config.parallel + n_cached),
            n_threads=config.n_threads(),
            n_threads_batch=config.n_threads_batch(),
            adapt_threads=config.adapts_threads(),
            kv_unified=config.kv_unified,
            flash_attention=FLASH_ATTENTION[config.flash_attn],
            type_k=CACHE_TYPES[config.cache_type_k],
            type_v=CACHE_TYPES[config.cache_type_v],
            checkpoint_interval=config.checkpoint_interval,
            n_checkpoints=config.ctx_checkpoints,
            checkpoint_bytes=config.checkpoint_mib << 20,
        )
        return cls(context, config, observer=observer)

    def _make_loop(self, context: Any) -> EngineLoop | EmbeddingLoop:
        self._scheduler = Scheduler(context, self.config)
        return EngineLoop(
            context, self.registry, self._scheduler, self._endings, observer=self._observer, trace=self.trace
        )

    @property
    def n_ctx(self) -> int:
        """Most tokens, prompt and answer together, that one choice may have."""
        return min(self._context.n_ctx, self.model.n_ctx_train)

    @property
    def failure(self) -> str | None:
        """Why the engine died, if it did."""
        died_of = self.registry.died_of
        return None if died_of is None else said(died_of)

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the engine's: nobody computes here."""
        return os.getpid() != self._pid

    def stalled_for(self) -> float:
        """Seconds since the running step began; 0 between steps."""
        return self._loop.stalled_for()

    @property
    def n_threads(self) -> int:
        """Compute threads of the running step, or of the last one."""
        return self._context.n_threads

    def counts(self) -> Counts:
        return self.registry.counts()

    def occupancy(self) -> Occupancy:
        """Slots and cells in use, as of the last turn of the engine thread."""
        return self._loop.occupancy

    # -- submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: GenerationParams,
        sink: Sink,
        *,
        request_id: str | None = None,
        session: str | None = None,
        arrived_at: float | None = None,
    ) -> Request:
        """Accept a request; its events go to `sink`. With a `session`, its older request is cancelled.

        Parameters
        ----------
        prompts
            Token ids; `params.n` choices are generated for each.
        arrived_at
            Monotonic seconds: deadlines count from here, and of a session's requests the one that arrived last is the
            newest. By default now.

        Raises
        ------
        InvalidRequestError
            Never servable as it stands; nothing was changed.
        QueueFullError, EngineClosedError
            Not now; nothing was changed.
        """
        cancellation = Cancellation(self._native.CancelFlag())
        request = Request(
            request_id or f"req-{secrets.token_hex(8)}", params, cancellation, sink, session, arrived_at=arrived_at
        )
        request.choices = self._choice_maker.choices(request, prompts, self.n_ctx)
        return self._accept(request)

    def submit_texts(
        self,
        texts: Sequence[Sequence[int]],
        sink: Sink,
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        session: str | None = None,
        arrived_at: float | None = None,
    ) -> Request:
        """As `submit`, for an embedding of each text; see `pyllmcancel.embeddings.engine`."""
        raise InvalidRequestError("this model does not pool, so it makes no embeddings", "model")

    def _accept(self, request: Request) -> Request:
        if self.forked:
            raise EngineClosedError(FORKED)
        accepted = self.registry.accept(request)
        self._log_added(request)
        self._observer.request_added(request)
        for cancelled in accepted.cancelled:
            if cancelled.superseded_by is not None:
                logger.info("request %s superseded by %s", cancelled.id, cancelled.superseded_by)
        for cancelled in accepted.withdrawn:
            self._endings.conclude_waiting(cancelled)
        timeout = request.params.timeout if request.params.timeout is not None else self.config.request_timeout
        if timeout is not None:
            self._reaper.at_deadline(request, request.arrived_at + timeout)
        return request

    def generate(
        self, prompt: str | Sequence[int], params: GenerationParams | None = None, **options: Any
    ) -> ThreadStream:
        """Generate for a reader in a plain thread; `options` are fields of GenerationParams or SamplingParams."""
        sink = ThreadSink()
        request = self.submit([self.tokens(prompt)], params or generation_params(**options), sink)
        return ThreadStream(request, self, sink)

    def agenerate(
        self, prompt: str | Sequence[int], params: GenerationParams | None = None, **options: Any
    ) -> AsyncStream:
        """As `generate`, for a reader in the running event loop."""
        sink = LoopSink(asyncio.get_running_loop())
        request = self.submit([self.tokens(prompt)], params or generation_params(**options), sink)
        return AsyncStream(request, self, sink)

    def tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        return self.model.tokenize(prompt) if isinstance(prompt, str) else prompt

    def _log_added(self, request: Request) -> None:
        counts = self.counts()
        logger.info(
            "request %s added, session %s, %s prompt tokens, waiting %d, running %d",
            request.id,
            (request.session or "-").encode("unicode_escape").decode(),  # a client's text, line feeds and all
            f"{request.n_prompt_tokens:,}",
            counts.waiting,
            counts.running,
        )

    # -- cancelling ---------------------------------------------------------------------------------------------------

    def cancel(self, request: Request, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel a request: sticky, first reason wins, a no-op after the end. Returns whether this call decided it.

        Returns at once; ``request.ended`` resolves when the computation has stopped and its slots are free.
        """
        return not self.forked and self._endings.cancel(request, reason)

    def abandoned(self, request: Request) -> None:
        """A reader dropped its stream; may be called from a destructor."""
        self._reaper.abandoned(request)

    def cancel_session(self, session: str, reason: CancelReason = CancelReason.EXPLICIT) -> Request | None:
        """Cancel a session's live request, if it has one."""
        request = self.registry.newest(session)
        if request is not None:
            self.cancel(request, reason)
        return request

    # -- ending -------------------------------------------------------------------------------------------------------

    def close(self, drain: float = 0.0) -> None:
        """Accept no more, let the live requests finish for `drain` seconds, cancel the rest, and stop. Idempotent.

        Does nothing in a forked child.
        """
        if self.forked:
            return
        self.registry.close()
        if not self.registry.wait_until_empty(drain):
            self._endings.shut_down()
        self._thread.join()
        self._reaper.close()
        self._unclosed.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def compiled_module() -> Any:
    """``pyllmcancel._native``, or an ImportError that says why it is not there."""
    try:
        from pyllmcancel import _native
    except ImportError as error:
        advice = "this is the source tree, not the installed package: run python with -P, or from another folder"
        raise ImportError(f"pyllmcancel's compiled module is missing; {advice}") from error
    return _native


def generation_params(**options: Any) -> GenerationParams:
    """GenerationParams from flat options, those of SamplingParams among them."""
    names = [field.name for field in fields(GenerationParams) if field.name != "sampling"]
    own = {name: options.pop(name) for name in names if name in options}
    return GenerationParams(sampling=SamplingParams(**options), **own)
