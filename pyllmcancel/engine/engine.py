"""The engine: submit a request, read its stream, cancel it. The only entry point to the layers below.

The life of a request: ``Engine.submit`` → ``Registry.accept`` (supersede keys, waiting queue) → ``EngineLoop`` (admit,
step, publish) → ``Endings.conclude``. A cancel goes ``Engine.cancel`` → ``Endings.cancel`` → ``Cancellation.request``
(the flag that the compiled core reads) → ``Endings.conclude``, by the engine thread or, for a request that still waits,
by the caller.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.config import EngineConfig
from pyllmcancel.embeddings.pairs import pairs_of
from pyllmcancel.embeddings.workload import Embedding, pooling_of
from pyllmcancel.engine.draft_loading import (
    check_drafting,
    check_heads,
    has_draft_model,
    has_heads,
    load_draft_model,
)
from pyllmcancel.engine.errands import Errand
from pyllmcancel.engine.fitting import placed, summary
from pyllmcancel.engine.generation import Generation
from pyllmcancel.engine.loop import EngineLoop
from pyllmcancel.engine.reading import read_first
from pyllmcancel.engine.thread import end_unclosed, say_last_words, work
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, said
from pyllmcancel.events import Sink
from pyllmcancel.missing_libraries import missing_library
from pyllmcancel.models import packaged_model_path
from pyllmcancel.pooling import Pooling
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.observer import NullObserver, Observers, StepTrace
from pyllmcancel.requests.registry import Counts, Registry
from pyllmcancel.requests.request import NO_OWNER, GenerationParams, Request
from pyllmcancel.requests.token_stream import FORKED, AsyncStream, LoopSink, ThreadSink, ThreadStream
from pyllmcancel.requests.watcher import Watcher
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.scheduling.disk_floor import NOTHING_ON_DISK, DiskCounts

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel._native import SwappedPrefix
    from pyllmcancel.embeddings.request import Embedded
    from pyllmcancel.placement import Device
    from pyllmcancel.requests.adapter_table import AdapterTable
    from pyllmcancel.requests.observer import Observer
    from pyllmcancel.requests.registry import Accepted
    from pyllmcancel.requests.request import Origin, Rank
    from pyllmcancel.scheduling.scheduler import Capacity, Occupancy
    from pyllmcancel.scheduling.swap_space import Fetched

logger = logging.getLogger("pyllmcancel.engine")

T = TypeVar("T")

TRACED_STEPS = 1024
DOES_NOT_GENERATE = "this model makes embeddings and does not generate text"
DOES_NOT_POOL = "this model does not pool, so it makes no embeddings"
RANKS = "this model ranks documents and makes no embeddings"
DOES_NOT_RANK = "this model does not rank documents"
EMBEDS_TOKENS = "this model embeds tokens (--pooling none), and makes no embeddings of texts"
EMBEDS_TEXTS = "this model embeds texts, not tokens: that is --pooling none"
ESCAPED = codecs.getencoder("unicode_escape")  # looked up here: Python imports a codec at its first use


class Engine:
    """Runs a workload in the one thread that computes. Every method may be called from any thread.

    An engine that is dropped, or still open when the interpreter ends, is closed, with a ResourceWarning. A forked
    child has no engine thread: calls that would wait for the thread raise EngineClosedError.

    Attributes
    ----------
    media : MediaLibrary or None
        Makes prompts with pictures and sounds, if the model has a projector.
    stopped : concurrent.futures.Future of None
        Done when the engine thread has stopped: with None after `close`, else with the exception that ended the thread.
        Every request has its ending by then.

    Examples
    --------
    >>> with Engine.load(EngineConfig()) as engine:  # doctest: +SKIP
    ...     with engine.generate("def hello_world():", max_tokens=16) as stream:
    ...         print("".join(delta.text for delta in stream))
    """

    def __init__(self, workload: Generation | Embedding, *, observer: Observer | None = None) -> None:
        """Start an engine; `load` also makes the workload.

        Parameters
        ----------
        workload
            The work to compute, with its configuration: generation, or embeddings.
        observer
            Called at every event; see `pyllmcancel.requests.observer`.
        """
        self.workload = workload
        self.config = workload.config
        self.model = workload.model
        self.media = workload.media if isinstance(workload, Generation) else None
        self.trace = StepTrace(TRACED_STEPS)
        self.registry = Registry(self.config.max_queue, self.config.max_running)
        self.registry.ring = workload.ring
        if isinstance(workload, Generation):
            workload.on_change(self.registry.wake)
        self._observers = Observers(observer or NullObserver())
        self._endings = Endings(self.registry, self._observers)
        self._watcher = Watcher(self._endings.cancel, self._endings.shut_down)
        self._loop = EngineLoop(
            workload, self.registry, self._endings, self._watcher, observer=self._observers, trace=self.trace
        )
        self.stopped: Future[None] = Future()
        self._pid = os.getpid()
        # None of the engine's threads refers to the engine, so that a dropped engine is collected.
        self._thread = threading.Thread(
            target=work, args=(self._loop, self.stopped), name="pyllmcancel-engine", daemon=True
        )
        self._thread.start()
        self._unclosed = weakref.finalize(self, end_unclosed, weakref.ref(self), self._watcher, self._pid)

    @classmethod
    def load(
        cls,
        config: EngineConfig | None = None,
        *,
        observer: Observer | None = None,
        progress: Callable[[float], bool | None] | None = None,
    ) -> Engine:
        """Load a model and start an engine on it. For a model that pools, the engine makes embeddings or ranks.

        Parameters
        ----------
        config
            The model, sizes and limits; by default the small model in the package.
        observer
            Called at every event; see `pyllmcancel.requests.observer`.
        progress
            Called with a fraction in [0, 1]; returning False cancels the load.

        Raises
        ------
        UsageError
            A value of `config` is impossible on this machine.
        PlacementError
            The model does not fit into memory.
        ModelLoadError
            The file is not a model that this build can serve.
        LoadCancelled
            `progress` returned False.
        ContextError
            There is no memory for the context.
        """
        native = compiled_module()
        config = placed(config or EngineConfig(), native, progress)
        path = Path(config.model or packaged_model_path())
        drafts = has_draft_model(config)
        if drafts:
            check_drafting(config, native)
        if has_heads(config):
            check_heads(config, native)
        if config.mmap and progress is not None:
            progress = read_first(path, progress)
        model = native.Model.load(
            path,
            placement=config.placement,
            mmap=config.mmap,
            mlock=config.mlock,
            lora=[path for path, _ in config.lora],
            heads=has_heads(config),
            progress=progress,
        )
        logger.info("placement: %s", summary(model.layers_by_device))
        if has_heads(config):
            logger.info("answers are drafted by the model's own heads")
        if (variant := native.cpu_variant()) is not None:
            logger.info("the CPU's back end: %s", variant)
        pooling = pooling_of(model, config.pooling, required=config.embeddings)
        workload: Generation | Embedding
        if config.mmproj is not None and pooling is not None:
            logger.warning("a model that pools takes texts only: %s is not used", config.mmproj)
        if pooling is None:
            draft_model = load_draft_model(config, native, progress) if drafts else None
            workload = Generation.on(model, config, native, draft_model=draft_model)
        else:
            workload = Embedding.on(model, pooling, config, native)
            if pooling is Pooling.RANK and len(model.labels) > 1:
                logger.info("documents are ranked by their score for %r, of %s", model.labels[0], model.labels)
        engine = cls(workload, observer=observer)
        if (why := engine.varies_because) is None:
            logger.info("an answer depends on its own request only")
        else:
            logger.info("the last bits of an answer may depend on other requests: %s", why)
        native.tell_before_abort(engine)
        return engine

    @property
    def n_ctx(self) -> int:
        """The limit of one choice's tokens, prompt and answer together, or of one text's."""
        return self.workload.n_ctx

    @property
    def varies_because(self) -> str | None:
        """The reason why the last bits of a result may depend on other requests; None if they do not."""
        return self.workload.varies_because

    @property
    def n_embd(self) -> int | None:
        """The length of an embedding, or the number of a text's scores; None for a model that generates."""
        return self.workload.n_embd if isinstance(self.workload, Embedding) else None

    @property
    def adapters(self) -> AdapterTable:
        """The LoRA adapters that requests may use."""
        return self.workload.adapters

    @property
    def pooling(self) -> Pooling | None:
        """The kind of a text's result: a vector, one of each token, or scores; None for a model that generates."""
        return self.workload.pooling if isinstance(self.workload, Embedding) else None

    def check_embeds(self, *, tokens: bool = False) -> None:
        """Raise InvalidRequestError unless this engine makes embeddings of texts or, if `tokens`, of their tokens."""
        if self.pooling is None:
            raise InvalidRequestError(DOES_NOT_POOL, "model")
        if self.pooling is Pooling.RANK:
            raise InvalidRequestError(RANKS, "model")
        if (self.pooling is Pooling.NONE) is not tokens:
            raise InvalidRequestError(EMBEDS_TEXTS if tokens else EMBEDS_TOKENS, "model")

    def check_ranks(self) -> None:
        """Raise InvalidRequestError unless this engine ranks documents."""
        if self.pooling is not Pooling.RANK:
            raise InvalidRequestError(DOES_NOT_RANK, "model")

    @property
    def n_threads(self) -> int:
        """The number of compute threads of the running step, or of the last one."""
        return self.workload.n_threads

    @property
    def failure(self) -> str | None:
        """The error that the engine died of, if it did."""
        died_of = self.registry.died_of
        return None if died_of is None else said(died_of)

    @property
    def forked(self) -> bool:
        """True if this process was forked from the engine's, and so has no engine thread."""
        return os.getpid() != self._pid

    def stalled_for(self) -> float:
        """Seconds since the running step began; 0 between steps."""
        return self._loop.stalled_for()

    def counts(self, owner: str | None = None) -> Counts:
        """Return the counts of one owner, or of all owners."""
        return self.registry.counts(owner)

    def occupancy(self) -> Occupancy:
        """The slots and cells in use, as of the last turn of the engine thread."""
        return self._loop.occupancy

    @property
    def n_slots(self) -> int:
        """Slots have numbers below this one: those of the running requests, and of idle prefixes."""
        return self.workload.n_slots if isinstance(self.workload, Generation) else self.config.parallel

    @property
    def capacity(self) -> Capacity:
        """The number of slots and cells that the engine has."""
        return self.workload.capacity

    @property
    def n_generated(self) -> int:
        """The number of tokens generated so far, including cancelled requests."""
        return self.workload.n_generated if isinstance(self.workload, Generation) else 0

    @property
    def draft_sources(self) -> tuple[str, ...]:
        """The sources that answers are drafted from."""
        return self.workload.draft_sources if isinstance(self.workload, Generation) else ()

    @property
    def past_answers_bytes(self) -> int:
        """The memory of the answers that are remembered to draft others from."""
        return self.workload.past_answers_bytes if isinstance(self.workload, Generation) else 0

    @property
    def disk_counts(self) -> DiskCounts:
        """The counts of prefixes on disk: those that are there, were written, were read."""
        disk = self.workload.disk if isinstance(self.workload, Generation) else None
        return NOTHING_ON_DISK if disk is None else disk.counts

    @property
    def n_preempted(self) -> int:
        """The number of times that a running choice, or text, has given its slot back to be computed later."""
        return self.workload.scheduler.n_preempted

    def add_observer(self, observer: Observer) -> None:
        """Add an observer of everything that happens from now on. The observer must not refer to the engine."""
        self._observers.add(observer)

    def remove_observer(self, observer: Observer) -> None:
        """Remove an observer. Idempotent."""
        self._observers.remove(observer)

    # -- submitting ---------------------------------------------------------------------------------------------------

    def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: GenerationParams,
        sink: Sink,
        **origin: Unpack[Origin],
    ) -> Request:
        """Accept a request; its events go to `sink`. Of two requests with one `supersede` key, the earlier arrival is
        cancelled.

        Parameters
        ----------
        prompts
            Token ids; `params.n` choices are generated for each.
        origin
            Id, owner, session, key, priority, time of arrival, client: see `pyllmcancel.requests.request.Origin`.

        Raises
        ------
        InvalidRequestError
            The request can never be served in this form. Nothing was changed.
        QueueFullError, EngineClosedError
            The request cannot be accepted now. Nothing was changed.
        """
        if not isinstance(self.workload, Generation):
            raise InvalidRequestError(DOES_NOT_GENERATE, "model")
        return self._accept(self.workload.request(prompts, params, sink, **origin))

    def submit_texts(
        self,
        texts: Sequence[Sequence[int]],
        sink: Sink,
        *,
        timeout: float | None = None,
        **origin: Unpack[Origin],
    ) -> Request:
        """As `submit`, for texts to embed or score (token ids): `sink` gets an `Embedded` for each, and the ending."""
        if not isinstance(self.workload, Embedding):
            raise InvalidRequestError(DOES_NOT_POOL, "model")
        return self._accept(self.workload.request(texts, sink, timeout=timeout, **origin))

    def _accept(self, request: Request) -> Request:
        if self.forked:
            raise EngineClosedError(FORKED)
        accepted = self.registry.accept(request)
        self._observers.request_added(request)
        self._log_added(request)
        self._end_superseded(accepted)
        timeout = request.params.timeout if request.params.timeout is not None else self.config.request_timeout
        if timeout is not None:
            self._watcher.at_deadline(request, request.arrived_at + timeout)
        return request

    def heed(self, owner: str, key: str, rank: Rank) -> Rank | None:
        """Cancel an older request of this supersede key, because another process has accepted a newer one.

        Returns the newest request of the key that is known here, if it is newer than that one.
        """
        if self.forked:
            return None
        newer, accepted = self.registry.heed(owner, key, rank)
        self._end_superseded(accepted)
        return newer

    def _end_superseded(self, accepted: Accepted) -> None:
        """Report requests that were cancelled for a newer one, and end those of them that were waiting."""
        for cancelled in accepted.cancelled:
            self._observers.request_cancelled(cancelled)
            if cancelled.superseded_by is not None:
                facts = {"request_id": cancelled.id, "superseded_by": cancelled.superseded_by}
                logger.info("request %s superseded by %s", cancelled.id, cancelled.superseded_by, extra=facts)
        for cancelled in accepted.withdrawn:
            self._endings.conclude_waiting(cancelled)

    def generate(
        self, prompt: str | Sequence[int], params: GenerationParams | None = None, **options: Any
    ) -> ThreadStream:
        """Generate for a reader in a plain thread.

        Parameters
        ----------
        prompt
            A text, or token ids. A text is no chat: no template is applied.
        params
            All parameters of the request; without them `options` count.
        options
            Fields of GenerationParams or SamplingParams.

        Raises
        ------
        InvalidRequestError
            The request can never be served in this form, for example because the prompt is longer than the context.
        QueueFullError
            `EngineConfig.max_queue` requests wait already.
        EngineClosedError
            The engine is closed, or its thread has died.
        """
        sink = ThreadSink()
        request = self.submit([self.tokens(prompt)], params or generation_params(**options), sink)
        return ThreadStream(request, self, sink)

    def agenerate(
        self, prompt: str | Sequence[int], params: GenerationParams | None = None, **options: Any
    ) -> AsyncStream:
        """Generate for a reader in the running event loop. Parameters and errors are those of `generate`."""
        sink = LoopSink(asyncio.get_running_loop())
        request = self.submit([self.tokens(prompt)], params or generation_params(**options), sink)
        return AsyncStream(request, self, sink)

    def embed(self, texts: Sequence[str | Sequence[int]], *, timeout: float | None = None) -> NDArray[np.float32]:
        """Embed texts, and wait. An exception in the waiting thread, such as Ctrl-C, cancels the request.

        Returns
        -------
        ndarray
            Shape (len(texts), n_embd); each row has length 1 (L2).
        """
        import numpy as np  # imported late: the command can be interrupted by Ctrl-C while NumPy is imported

        self.check_embeds()
        return np.stack(self._embedded([self.text_tokens(text) for text in texts], timeout))

    def embed_tokens(
        self, texts: Sequence[str | Sequence[int]], *, timeout: float | None = None
    ) -> list[NDArray[np.float32]]:
        """As `embed`, for a vector of each token: with `EngineConfig.pooling` ``none`` and `EngineConfig.embeddings`.

        Returns
        -------
        list of ndarray
            Of each text, shape (tokens, n_embd). The vectors are as the model has them, of any length.
        """
        self.check_embeds(tokens=True)
        return self._embedded([self.text_tokens(text) for text in texts], timeout)

    def rank(self, query: str, documents: Sequence[str], *, timeout: float | None = None) -> NDArray[np.float32]:
        """Score documents by a query, and wait. An exception in the waiting thread cancels the request.

        Returns
        -------
        ndarray
            Shape (len(documents),): the score of each document, the first one if the model has several.
        """
        import numpy as np

        self.check_ranks()
        pairs = pairs_of(self.model, query, partial(self.model.tokenize, add_special=False))
        scores = self._embedded([pairs.tokens(document) for document in documents], timeout)
        return np.stack(scores)[:, 0]

    def _embedded(self, texts: Sequence[Sequence[int]], timeout: float | None) -> list[NDArray[np.float32]]:
        """Wait for the results of texts, in their order."""
        sink = ThreadSink()
        request = self.submit_texts(texts, sink, timeout=timeout)
        with ThreadStream(request, self, sink) as stream:
            found = {delta.index: cast("Embedded", delta).embedding for delta in stream}
        return [found[index] for index in range(len(texts))]

    def tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Return the tokens of a prompt; token ids are returned as they are."""
        return self.model.tokenize(prompt) if isinstance(prompt, str) else prompt

    def text_tokens(self, text: str | Sequence[int]) -> Sequence[int]:
        """Return the tokens of a text to embed, with the tokens that the model wants around it. Special tokens in the
        text are recognised.
        """
        return self.model.tokenize(text, add_special=True, parse_special=True) if isinstance(text, str) else text

    def _log_added(self, request: Request) -> None:
        if not logger.isEnabledFor(logging.INFO):
            return
        counts = self.counts()
        logger.info(
            "request %s added, owner %s, session %s, %s prompt tokens, waiting %d, running %d",
            request.id,
            request.owner or "-",
            ESCAPED(request.session or "-")[0].decode(),  # a client's text, which may contain line feeds
            f"{request.n_prompt_tokens:,}",
            counts.waiting,
            counts.running,
            extra={
                "request_id": request.id,
                "owner": request.owner or None,
                "session": request.session,
                "parent": request.parent,
                "prompt_tokens": request.n_prompt_tokens,
                "waiting": counts.waiting,
                "running": counts.running,
            },
        )

    # -- slots, for llama-server's clients ----------------------------------------------------------------------------

    def state_identity(self, known: Path) -> str:
        """Return the identity that a state in a file must have; see `pyllmcancel.engine.state_identity`."""
        return self._generation().state_identity(known)

    def blank_prefix(
        self, tokens: Sequence[int], least: int, parts: Sequence[tuple[int, int]]
    ) -> tuple[SwappedPrefix, list[memoryview]] | None:
        """Make a prefix whose states are to be read from a file; None if there is no memory."""
        return self._generation().blank_prefix(tokens, least, parts)

    def _generation(self) -> Generation:
        if not isinstance(self.workload, Generation):
            raise InvalidRequestError(DOES_NOT_GENERATE, "model")
        return self.workload

    def copy_slot(self, owner: str, number: int) -> Future[Fetched | None]:
        """Copy the prefix of an owner's slot, as soon as no request of the slot runs; None if the slot is empty."""
        return self._ask(lambda generation: generation.scheduler.copy_slot(owner, number), owner, number)

    def fill_slot(self, owner: str, number: int, prefix: Fetched) -> Future[bool]:
        """Have an owner's slot hold a copied prefix; False if there is no room for that now."""
        return self._ask(lambda generation: generation.scheduler.fill_slot(owner, number, prefix), owner, number)

    def erase_slot(self, owner: str, number: int) -> Future[int]:
        """Forget the prefix of an owner's slot, wherever it is kept; returns its number of tokens."""
        return self._ask(lambda generation: generation.scheduler.erase_slot(owner, number), owner, number)

    def _ask(self, call: Callable[[Generation], T], owner: str, number: int) -> Future[T]:
        """Have the engine thread make a call about a slot, between two steps, when no request of the slot runs.

        Raises
        ------
        InvalidRequestError
            The model does not generate.
        EngineClosedError
            The engine is closed, or its thread has died.
        """
        if self.forked:
            raise EngineClosedError(FORKED)
        generation = self._generation()
        errand = Errand(partial(call, generation), lambda: not generation.scheduler.slot_is_busy(owner, number))
        self._loop.errands.add(errand)
        self.registry.wake()
        return errand.result

    # -- cancelling ---------------------------------------------------------------------------------------------------

    def cancel(self, request: Request, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel a request: sticky, first reason wins, a no-op after the end. Returns whether this call decided the
        request's fate.

        Returns at once; ``request.ended`` resolves when the computation has stopped and its slots are free.
        """
        return not self.forked and self._endings.cancel(request, reason)

    def dropped(self, request: Request) -> None:
        """A reader dropped its stream; may be called from a destructor."""
        self._watcher.dropped(request)

    def cancel_session(
        self,
        session: str,
        reason: CancelReason = CancelReason.EXPLICIT,
        *,
        owner: str = NO_OWNER,
        descendants: bool = True,
        hold: float = 0.0,
    ) -> list[Request] | None:
        """Cancel all requests of a session and, with `descendants`, of the sessions below it; None if the session is
        unknown.

        Returns the requests that had not ended. With a positive `hold`, requests that arrive within `hold` seconds are
        cancelled on their arrival, even for a session that is not known yet.
        """
        family = self.registry.family_to_cancel(session, owner, descendants=descendants, hold=hold)
        if family is None:
            return None
        requests = [request for members in family.values() for request in members]
        for request in requests:
            self.cancel(request, reason)
        return requests

    # -- ending -------------------------------------------------------------------------------------------------------

    def close(self, drain: float = 0.0) -> None:
        """Accept no more requests, let the live ones finish for `drain` seconds, cancel the rest, and stop. Idempotent.

        Does nothing in a forked child.
        """
        if self.forked:
            return
        self.registry.close()
        if not self.registry.wait_until_empty(drain):
            self._endings.shut_down()
        self._thread.join()
        self._watcher.close()
        self._unclosed.detach()

    def end_all(self, why: str) -> None:
        """End every request with an error now. For the compiled core, which ends the process afterwards."""
        say_last_words(self._loop, self.stopped, why)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def compiled_module() -> Any:
    """Return ``pyllmcancel._native``, or raise an ImportError that says why the module is missing."""
    try:
        from pyllmcancel import _native
    except ImportError as error:
        why = missing_library(error) or (
            "pyllmcancel's compiled module is missing; this is the source tree, not the installed package: "
            "run python with -P, or from another folder"
        )
        raise ImportError(why, name=error.name, path=error.path) from error
    return _native


def devices() -> list[Device]:
    """Return the devices, besides the CPU, on which this build can compute on this machine."""
    found: list[Device] = compiled_module().devices()
    return found


def generation_params(**options: Any) -> GenerationParams:
    """Make GenerationParams from flat options, which include fields of SamplingParams."""
    names = [field.name for field in fields(GenerationParams) if field.name != "sampling"]
    own = {name: options.pop(name) for name in names if name in options}
    return GenerationParams(sampling=SamplingParams(**options), **own)
