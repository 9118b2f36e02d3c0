"""The engine thread: the one writer of everything that runs.

Each turn: take what may start, drop what was cancelled, plan a step, compute it with the GIL released, hand out its
tokens. A request leaves the batch in the step in which it ends, and its one ending is written here; only a request that
never left the waiting queue is ended elsewhere, by the thread that withdrew it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyllmcancel.observer import StepRecord
from pyllmcancel.request import Choice, Delta, FinishReason, Request, RequestStatus, TokenLogprobs
from pyllmcancel.step import LogitFault, StepResult, StepRow, StepStatus
from pyllmcancel.token_stream import Outbox

if TYPE_CHECKING:
    from pyllmcancel._native import Context
    from pyllmcancel.endings import Endings
    from pyllmcancel.observer import Observer, StepTrace
    from pyllmcancel.registry import Registry
    from pyllmcancel.scheduler import Scheduler
    from pyllmcancel.step import StepItem

logger = logging.getLogger("pyllmcancel.engine")

FAULTS = {
    LogitFault.NOT_FINITE: "the model produced logits that are not finite",
    LogitFault.ALL_EQUAL: "the model produced logits that are all equal",
    LogitFault.GRAMMAR: "the grammar allows no continuation",
}


class EngineLoop:
    """Runs in one thread, from :meth:`run`; nothing here may be called from another, but for `stalled_for`."""

    def __init__(
        self,
        context: Context,
        registry: Registry,
        scheduler: Scheduler,
        endings: Endings,
        *,
        observer: Observer,
        trace: StepTrace,
    ) -> None:
        self._context = context
        self._is_eog: Callable[[int], bool] = context.model.is_eog
        self._registry = registry
        self._scheduler = scheduler
        self._endings = endings
        self._observer = observer
        self._trace = trace
        self._outbox = Outbox()
        self._running: list[Request] = []
        self._n_steps = 0
        # Written by the engine thread, replaced whole; read from any.
        self.occupancy = scheduler.occupancy()
        # Monotonic seconds; written by the engine thread, read by whoever asks after its health.
        self._step_began: float | None = None

    def run(self) -> None:
        """Work until the registry is closed and everything has ended."""
        while self._running or self._registry.wait_for_work():
            self.turn()

    def turn(self) -> None:
        """One iteration; at most one step."""
        # Before admitting: a request that supersedes another finds its slot, and its cells, given back.
        self._drop_cancelled()
        self._admit()
        # Endings first: whoever was cancelled must not wait for the step of those who were not.
        self._publish()
        items = self._scheduler.plan()
        if items:
            self._step(items)
        self._publish()

    def _publish(self) -> None:
        self.occupancy = self._scheduler.occupancy()
        self._outbox.flush()

    def stalled_for(self) -> float:
        """Seconds since the running step began; 0 between steps. May be called from any thread."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def fail_everything(self, error: str) -> None:
        """The thread is about to die: nobody must wait for it."""
        for request in self._running:
            self._endings.conclude(request, FinishReason.ERROR, self._outbox, error=error)
        self._running.clear()
        while (waiting := self._registry.take_oldest(lambda _: True)) is not None:
            self._endings.conclude(waiting, FinishReason.ERROR, self._outbox, error=error)
        self._outbox.flush()

    def _admit(self) -> None:
        while (request := self._registry.take_oldest(self._admissible)) is not None:
            if request.cancellation.requested:
                # Cancelled between its leaving the queue and here: never launched.
                self._endings.conclude(request, FinishReason.CANCELLED, self._outbox)
            else:
                self._running.append(request)
                self._scheduler.add(request)
                self._open_pending()
        self._open_pending()

    def _admissible(self, request: Request) -> bool:
        return request.cancellation.requested or self._scheduler.has_room_for(len(request.choices[0].prompt))

    def _open_pending(self) -> None:
        for choice in self._scheduler.admit():
            request = choice.request
            if request.admitted_at is None:
                request.admitted_at = time.monotonic()
                request.status = RequestStatus.PREFILL

    def _drop_cancelled(self) -> None:
        for request in [request for request in self._running if request.cancellation.requested]:
            self._end(request, FinishReason.CANCELLED)

    def _step(self, items: list[StepItem]) -> None:
        fixed, per_token = self._scheduler.cost.fit()
        began = self._step_began = time.monotonic()
        result = self._context.step(items, fixed_cost=fixed, cost_per_token=per_token)
        self._step_began = None
        seconds = time.monotonic() - began
        self._record(items, result, began, seconds)
        match result.status:
            case StepStatus.OK:
                self._scheduler.cost.observe(sum(item.n_tokens for item in items), seconds)
                # Looked up first: a row at fault ends its request, and takes the slots of its siblings' rows.
                for choice, row in [(self._scheduler.choice(row.seq), row) for row in result.rows]:
                    self._take_row(choice, row)
            case StepStatus.ABORTED:
                self._scheduler.resync(items)
            case StepStatus.NO_ROOM:
                if not self._scheduler.preempt_newest():
                    self._fail(items, "the context has no room for this request")
            case StepStatus.INVALID | StepStatus.FAILED_ALLOC | StepStatus.FAILED_COMPUTE:
                self._scheduler.resync(items)
                self._find_culprit(items, result.status)

    def _find_culprit(self, items: list[StepItem], status: StepStatus) -> None:
        """One sequence's bad luck is not its neighbours': compute each alone, and fail the one that fails alone."""
        logger.warning("step %d of %d sequences failed: %s", self._n_steps, len(items), status.name.lower())
        if len(items) > 1:
            self._scheduler.suspect(item.seq for item in items)
        else:
            self._fail(items, f"the computation failed ({status.name.lower()})")

    def _fail(self, items: list[StepItem], error: str) -> None:
        for request in {self._scheduler.choice(item.seq).request for item in items}:
            self._end(request, FinishReason.ERROR, keep=False, error=error)

    def _take_row(self, choice: Choice, row: StepRow) -> None:
        choice.n_committed += row.n_tokens
        if choice.request.status is RequestStatus.FINISHED:
            return  # a sibling's fault ended the request a moment ago
        if row.fault is not LogitFault.NONE:
            self._end(choice.request, FinishReason.ERROR, keep=False, error=FAULTS[row.fault])
        elif row.token >= 0:
            self._take_token(choice, row)

    def _take_token(self, choice: Choice, row: StepRow) -> None:
        self._clock_token(choice)
        choice.generated.append(row.token)
        if choice.leads and len(choice.generated) == 1:
            self._scheduler.prompt_computed(choice)
        eog = self._is_eog(row.token)
        text = "" if eog else choice.detokenizer.feed(row.token)
        if eog or choice.detokenizer.stopped_by is not None:
            choice.finish_reason = FinishReason.STOP
        elif len(choice.generated) >= choice.max_tokens:
            choice.finish_reason = FinishReason.LENGTH
        delta = self._delta(choice, row, text, eog=eog)
        if choice.finish_reason is None:
            self._outbox.add(choice.request.sink, delta)
        else:
            self._finish_choice(choice, delta)

    def _delta(self, choice: Choice, row: StepRow, text: str, *, eog: bool) -> Delta:
        if choice.finish_reason is not None:
            text += choice.detokenizer.flush()
        tokens = () if eog else (row.token,)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if row.logprob is not None and row.top_logprobs is not None and not eog:
            logprobs = (TokenLogprobs(row.token, row.logprob, row.top_logprobs),)
        return Delta(choice.index, text, tokens, logprobs, choice.finish_reason, choice.detokenizer.stopped_by)

    def _clock_token(self, choice: Choice) -> None:
        request, now = choice.request, time.monotonic()
        if request.first_token_at is None:
            request.first_token_at = now
            request.status = RequestStatus.DECODE
            self._observer.first_token(request, now - request.arrived_at)
        elif choice.last_token_at is not None:
            self._observer.next_token(request, now - choice.last_token_at)
        choice.last_token_at = now

    def _finish_choice(self, choice: Choice, delta: Delta) -> None:
        assert choice.finish_reason is not None
        request = choice.request
        self._scheduler.release(choice)
        if any(sibling.finish_reason is None for sibling in request.choices):
            self._outbox.add(request.sink, delta)
            return
        self._running.remove(request)
        self._endings.conclude(request, choice.finish_reason, self._outbox, last=delta)

    def _end(
        self, request: Request, finish_reason: FinishReason, *, keep: bool = True, error: str | None = None
    ) -> None:
        """End a request before all its choices have: the slots first, then the event."""
        for choice in request.choices:
            self._scheduler.release(choice, keep=keep)
        self._running.remove(request)
        self._endings.conclude(request, finish_reason, self._outbox, error=error)

    def _record(self, items: list[StepItem], result: StepResult, began: float, seconds: float) -> None:
        self._n_steps += 1
        sequences = []
        n_wasted = n_survivors = 0
        for item in items:
            choice = self._scheduler.choice(item.seq)
            phase = "decode" if choice.generated and item.n_tokens == 1 else "prefill"
            sequences.append((choice.request.id, choice.index, phase, item.n_tokens))
            cancelled = choice.request.cancellation.requested
            n_survivors += not cancelled
            if cancelled or result.status is StepStatus.ABORTED:
                n_wasted += item.n_tokens
        status = result.status.name.lower()
        record = StepRecord(self._n_steps, began, seconds, tuple(sequences), status, result.spared, n_survivors)
        self._trace.append(record)
        self._observer.step_done(record, n_wasted)
