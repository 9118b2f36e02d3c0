"""The engine, as the library and the server use it: submit a request, read its stream, cancel it.

The life of a request: ``Engine.arrive`` → ``Registry.arrive`` (its id, its session) → ``Engine.fill`` →
``Registry.accept`` (supersede keys, waiting queue) → ``EngineLoop`` (start, step, publish) → ``Endings.conclude``.
``Engine.submit`` does at once all that comes before the loop.

A cancel goes ``Engine.cancel`` → ``Endings.cancel`` → ``Cancellation.request`` (the flag that the compiled core reads)
→ ``Endings.conclude``. The caller concludes a request that waits in the queue, that is in preparation while no thread
works for it, or that the running step does not compute. A thread that prepares the request concludes it when it stops.
The engine thread concludes all others.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, cast

from pyllmcancel.cancellation import CancelReason, Deadline
from pyllmcancel.config import EngineConfig
from pyllmcancel.embeddings.workload import Embedding
from pyllmcancel.engine.calls import Calls
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.engine.generation import Generation
from pyllmcancel.engine.loop import EngineLoop
from pyllmcancel.engine.model_loading import load_workload
from pyllmcancel.engine.slots import Slots
from pyllmcancel.engine.thread import end_unclosed, say_last_words, work
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, error_text
from pyllmcancel.pooling import DOES_NOT_GENERATE, DOES_NOT_POOL
from pyllmcancel.requests.arrivals import Arrivals
from pyllmcancel.requests.endings import Endings
from pyllmcancel.requests.observer import Observer, Observers, StepTrace
from pyllmcancel.requests.params import GenerationParams
from pyllmcancel.requests.registry import Registry
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.tables import Counts
from pyllmcancel.requests.token_stream import FORKED
from pyllmcancel.requests.watcher import Watcher
from pyllmcancel.sampling import advised_sampling
from pyllmcancel.scheduling.disk_floor import NOTHING_ON_DISK
from pyllmcancel.scheduling.forecast import Forecast

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self, Unpack

    from pyllmcancel.embeddings.request import EmbeddingRequest
    from pyllmcancel.events import Sink
    from pyllmcancel.requests.request import Origin, RequestSummary
    from pyllmcancel.scheduling.disk_floor import DiskCounts
    from pyllmcancel.scheduling.forecast import Ahead
    from pyllmcancel.scheduling.scheduler import Occupancy

TRACED_STEPS = 1024


class Engine(Calls):
    """Runs a workload in the one thread that computes. Every method may be called from any thread.

    Its facts, such as its model and the limits of a request, are those of `pyllmcancel.scheduling.workload.Facts`.

    An engine that is dropped, or still open when the interpreter ends, is closed, with a ResourceWarning. A forked
    child has no engine thread: calls that would wait for the thread raise EngineClosedError.

    Attributes
    ----------
    arrivals : Arrivals
        Requests that are being prepared: see `arrive`.
    advised_sampling : dict
        The fields of SamplingParams that the model's file advises, for requests that do not set them.
    stopped : concurrent.futures.Future of None
        Done when the engine thread has stopped: with None after `close`, else with the exception that ended the thread.
        Every accepted request has its ending by then.

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
        super().__init__(**vars(workload.facts))
        self.workload = workload
        self.advised_sampling = advised_sampling(self.model.metadata)
        self.trace = StepTrace(TRACED_STEPS)
        self.registry = Registry(self.config.max_queue, self.config.max_running, self.config.max_queue_tokens)
        self.registry.forbid_ahead = workload.steps.forbid_ahead
        shares = workload.scheduler.shares
        self._forecast = Forecast(self.registry, shares, self.config.parallel, self.config.max_running)
        self._observers = Observers(observer or Observer(), self._forecast)
        self._endings = Endings(self.registry, self._observers)
        self._endings.retry_after = self._forecast.until_next_start
        self._watcher = Watcher(self._endings.cancel, self._endings.shut_down)
        self._loop = EngineLoop(
            workload, self.registry, self._endings, self._watcher, observer=self._observers, trace=self.trace
        )
        deadlines = {
            Deadline.ALL: self.config.request_timeout,
            Deadline.QUEUE: self.config.queue_timeout,
            Deadline.IDLE: self.config.idle_timeout,
        }
        self.arrivals = Arrivals(self.registry, self._endings, self._watcher, self._observers, deadlines)
        self._slots: Slots | None = None
        if isinstance(workload, Generation):
            workload.on_change(self.registry.wake)
            self._slots = Slots(workload, self._loop.jobs, self.registry.wake)
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
        engine = cls(load_workload(config or EngineConfig(), native, progress), observer=observer)
        native.tell_before_abort(engine)
        return engine

    @property
    def n_threads(self) -> int:
        """The number of compute threads of the running step, or of the last one."""
        return self.workload.core.n_threads

    @property
    def failure(self) -> str | None:
        """The error that the engine died of, if it did."""
        died_of = self.registry.died_of
        return None if died_of is None else error_text(died_of)

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

    def ahead_of(self, request: Request | RequestSummary) -> Ahead | None:
        """Return what a waiting request waits for; None if it does not wait for a slot."""
        return self._forecast.of(request)

    def occupancy(self) -> Occupancy:
        """The slots and cells in use, as of the last turn of the engine thread."""
        return self._loop.occupancy

    @property
    def slots(self) -> Slots:
        """The prefixes of slots, to be saved and restored; InvalidRequestError if the model does not generate."""
        if self.forked:
            raise EngineClosedError(FORKED)
        if self._slots is None:
            raise InvalidRequestError(DOES_NOT_GENERATE, "model")
        return self._slots

    @property
    def n_generated(self) -> int:
        """The number of tokens generated so far, including cancelled requests."""
        return self.workload.n_generated

    @property
    def past_answers_bytes(self) -> int:
        """The memory of the answers that are remembered to draft others from."""
        return 0 if self.workload.past_answers is None else self.workload.past_answers.n_bytes

    @property
    def disk_counts(self) -> DiskCounts:
        """The counts of prefixes on disk: those that are there, were written, were read."""
        return NOTHING_ON_DISK if self.workload.disk is None else self.workload.disk.counts

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
        request = self.workload.request(**origin)
        self.fill(request, prompts, params, sink)
        self.accept(request)
        return request

    def submit_texts(
        self,
        texts: Sequence[Sequence[int]],
        sink: Sink,
        *,
        timeout: float | None = None,
        **origin: Unpack[Origin],
    ) -> Request:
        """As `submit`, for texts to embed or score (token ids): `sink` gets an `Embedded` for each, and the ending."""
        request = self.workload.request(**origin)
        self.fill_texts(request, texts, sink, timeout)
        self.accept(request)
        return request

    # -- submitting in steps: a request is listed, and can be cancelled, while its prompt is prepared -----------------

    def arrive(self, **origin: Unpack[Origin]) -> Request:
        """List a request that has to be prepared: have `arrivals` refuse it, or else `fill` it, and `accept` it.
        InvalidRequestError, QueueFullError or EngineClosedError, and nothing is changed, if it cannot be listed.
        """
        self._check_not_forked()
        request = self.workload.request(**origin)
        self.arrivals.arrive(request)
        return request

    def fill(self, request: Request, prompts: Sequence[Sequence[int]], params: GenerationParams, sink: Sink) -> None:
        """Set what a request computes, as for `submit`; InvalidRequestError if it can never be served in this form,
        RequestCancelled if it is cancelled meanwhile.
        """
        if not isinstance(self.workload, Generation):
            raise InvalidRequestError(DOES_NOT_GENERATE, "model")
        self.workload.fill(request, prompts, params, sink)

    def fill_texts(
        self,
        request: Request,
        texts: Sequence[Sequence[int]],
        sink: Sink,
        timeout: float | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        """As `fill`, for texts to embed or score."""
        if not isinstance(self.workload, Embedding):
            raise InvalidRequestError(DOES_NOT_POOL, "model")
        self.workload.fill(cast("EmbeddingRequest", request), texts, sink, timeout, queue_timeout)

    def accept(self, request: Request, *, again: bool = False) -> None:
        """Have a filled request wait for its turn; it arrives with this if it has not. One that another server has
        accepted before, `again`, goes on, however long it has to wait here.

        QueueFullError or EngineClosedError, and nothing is changed, if it cannot be accepted now; RequestCancelled if
        it was cancelled while it was prepared.
        """
        self._check_not_forked()
        if self.config.refuse_late and not again:
            self._forecast.check(request, self.config.request_timeout)
        self.arrivals.accept(request, again=again)

    def _check_not_forked(self) -> None:
        if self.forked:
            raise EngineClosedError(FORKED)

    # -- cancelling ---------------------------------------------------------------------------------------------------

    def cancel(self, request: Request, reason: CancelReason = CancelReason.EXPLICIT) -> bool:
        """Cancel a request: sticky, first reason wins, a no-op after the end. Returns whether this call decided the
        request's fate.

        Returns at once; ``request.ended`` resolves when nothing is computed for the request any more. Its slots are
        free by then, except that a request which the running step does not compute gives them back after that step.
        """
        return not self.forked and self._endings.cancel(request, reason)

    def dropped(self, request: Request) -> None:
        """A reader dropped its stream; may be called from a destructor."""
        self._watcher.dropped(request)

    # -- ending -------------------------------------------------------------------------------------------------------

    def close(self, drain: float = 0.0) -> None:
        """Accept no more requests, let the live ones finish for `drain` seconds, cancel the rest, and stop. Idempotent.

        Does nothing in a forked child.
        """
        if self.forked:
            return
        self._endings.shut_down(accepted=False)
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
