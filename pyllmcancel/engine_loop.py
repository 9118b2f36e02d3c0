"""The engine thread: the one writer of everything that runs. Its turns are `step_loop`'s; here are tokens.

A request leaves the batch in the step in which it ends, and its one ending is written here; only a request that
never left the waiting queue is ended elsewhere, by the thread that withdrew it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyllmcancel.errors import ConstraintError
from pyllmcancel.request import Choice, Delta, FinishReason, Request, RequestStatus, TokenLogprobs
from pyllmcancel.step import LogitFault
from pyllmcancel.step_loop import Part, StepLoop

if TYPE_CHECKING:
    from pyllmcancel._native import Context
    from pyllmcancel.endings import Endings
    from pyllmcancel.observer import Observer, StepTrace
    from pyllmcancel.registry import Registry
    from pyllmcancel.scheduler import Scheduler
    from pyllmcancel.step import StepItem, StepResult, StepRow

FAULTS = {
    LogitFault.NOT_FINITE: "the model produced logits that are not finite",
    LogitFault.ALL_EQUAL: "the model produced logits that are all equal",
    LogitFault.GRAMMAR: "the grammar allows no continuation",
    LogitFault.TOO_COMPLEX: "the grammar is too ambiguous: it has more ways to read this answer than can be followed",
}


class EngineLoop(StepLoop[Request]):
    """Generates."""

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
        super().__init__(registry, scheduler, endings, observer=observer, trace=trace)
        self._context = context
        self._is_eog: Callable[[int], bool] = context.model.is_eog
        self._scheduler = scheduler

    def _let_go(self) -> None:
        super()._let_go()
        self._cut_late_prompts()

    def _admit(self) -> None:
        while (request := self._registry.take_oldest(self._admissible)) is not None:
            if not self._never_launched(request):
                self._running.append(request)
                self._scheduler.add(request)
                self._open_pending()
        self._open_pending()

    def _admissible(self, request: Request) -> bool:
        return request.cancellation.requested or self._scheduler.has_room_for(request.choices[0])

    def _open_pending(self) -> None:
        for choice in self._scheduler.admit():
            request = choice.request
            choice.slot = choice.seq
            if choice.admitted_at is None:
                choice.admitted_at = time.monotonic()
            if request.admitted_at is None:
                request.admitted_at = choice.admitted_at
                request.status = RequestStatus.PREFILL
            self._tell_progress(choice)

    def _cut_late_prompts(self) -> None:
        """End with nothing what took too long to begin: its reader prefers that to a late answer."""
        now = time.monotonic()
        for request in [request for request in self._running if request.status is RequestStatus.PREFILL]:
            most, began = request.params.max_prompt_seconds, request.admitted_at
            if most is not None and began is not None and now - began > most:
                # Those that wanted no answer may have finished already.
                for choice in [choice for choice in request.choices if choice.finish_reason is None]:
                    choice.finish_reason = FinishReason.LENGTH
                    self._finish_choice(choice, Delta(choice.index, "", finish_reason=FinishReason.LENGTH))

    def _plan(self) -> list[StepItem]:
        """What the scheduler plans, with constrained samplers told what is allowed; without those that cannot be."""
        items = self._scheduler.plan()
        for item in items:
            choice = self._scheduler.choice(item.seq) if self._scheduler.holds(item.seq) else None
            if choice is None or choice.constraint is None or item.n_tokens < choice.n_pending:
                continue
            try:
                choice.sampler.restrict(choice.constraint.mask())
            except ConstraintError as error:
                self._end(choice.request, FinishReason.ERROR, error=str(error))
        return [item for item in items if self._scheduler.holds(item.seq)]

    def _compute(self, items: list[StepItem], fixed_cost: float, cost_per_token: float) -> StepResult:
        return self._context.step(items, fixed_cost=fixed_cost, cost_per_token=cost_per_token)

    def _rest(self) -> None:
        self._context.rest()

    def _tend(self) -> None:
        self._scheduler.tend()

    def _make_ready(self) -> bool:
        return self._scheduler.make_ready()

    def _part(self, item: StepItem) -> Part:
        choice = self._scheduler.choice(item.seq)
        phase = "decode" if choice.generated and item.n_tokens == 1 else "prefill"
        return Part(choice.request, choice.index, phase)

    def _take_rows(self, rows: Sequence[StepRow]) -> None:
        # Looked up first: a row at fault ends its request, and takes the slots of its siblings' rows.
        for choice, row in [(self._scheduler.choice(row.seq), row) for row in rows]:
            self._take_row(choice, row)

    def _take_row(self, choice: Choice, row: StepRow) -> None:
        choice.n_committed += row.n_tokens
        choice.prompt_logprobs += [TokenLogprobs(*described) for described in row.described]
        if choice.request.status is RequestStatus.FINISHED:
            return  # a sibling's fault ended the request a moment ago
        self._tell_progress(choice)
        if row.fault is not LogitFault.NONE:
            self._end(choice.request, FinishReason.ERROR, keep=False, error=FAULTS[row.fault])
        elif row.token >= 0:
            self._take_token(choice, row)

    def _tell_progress(self, choice: Choice) -> None:
        if choice.request.params.prompt_progress and not choice.generated:
            done = min(choice.n_committed, len(choice.prompt))
            self._outbox.add(choice.request.sink, Delta(choice.index, "", prompt_done=done))

    def _take_token(self, choice: Choice, row: StepRow) -> None:
        if choice.leads and not choice.generated:
            self._scheduler.prompt_computed(choice)
        prompt_logprobs, choice.prompt_logprobs = tuple(choice.prompt_logprobs), []
        if choice.max_tokens == 0:
            # The prompt was all that was wanted; the token came with it.
            choice.finish_reason = FinishReason.LENGTH
            delta = Delta(choice.index, "", finish_reason=FinishReason.LENGTH, prompt_logprobs=prompt_logprobs)
        else:
            try:
                delta = self._delta(choice, row, prompt_logprobs)
            except ConstraintError as error:
                self._end(choice.request, FinishReason.ERROR, error=str(error))
                return
        if choice.finish_reason is None:
            self._outbox.add(choice.request.sink, delta)
        else:
            self._finish_choice(choice, delta)

    def _delta(self, choice: Choice, row: StepRow, prompt_logprobs: tuple[TokenLogprobs, ...]) -> Delta:
        self._clock_token(choice)
        choice.generated.append(row.token)
        eog = self._is_eog(row.token)
        text = "" if eog else choice.detokenizer.feed(row.token)
        choice.has_line_feed = choice.has_line_feed or "\n" in text
        complete = not eog and choice.constraint is not None and choice.constraint.accept(row.token)
        choice.finish_reason = self._finish_reason(choice, ended=eog or complete)
        if choice.finish_reason is not None:
            text += choice.detokenizer.flush()
        tokens = () if eog else (row.token,)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if row.logprob is not None and row.top_logprobs is not None and not eog:
            logprobs = (TokenLogprobs(row.token, row.logprob, row.top_logprobs),)
        stop_text = choice.detokenizer.stopped_by
        return Delta(choice.index, text, tokens, logprobs, choice.finish_reason, stop_text, prompt_logprobs)

    def _finish_reason(self, choice: Choice, *, ended: bool) -> FinishReason | None:
        if ended or choice.detokenizer.stopped_by is not None:
            return FinishReason.STOP
        if choice.detokenizer.outdented or len(choice.generated) >= choice.max_tokens or self._is_late(choice):
            return FinishReason.LENGTH
        return None

    def _is_late(self, choice: Choice) -> bool:
        most = choice.request.params.max_predict_seconds
        if most is None or not choice.has_line_feed:
            return False
        assert choice.first_token_at is not None
        return time.monotonic() - choice.first_token_at > most

    def _clock_token(self, choice: Choice) -> None:
        request, now = choice.request, time.monotonic()
        if request.first_token_at is None:
            request.first_token_at = now
            request.status = RequestStatus.DECODE
            self._observer.first_token(request, now - request.arrived_at)
        elif choice.last_token_at is not None:
            self._observer.next_token(request, now - choice.last_token_at)
        choice.first_token_at = choice.first_token_at or now
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
