"""The engine thread of a model that pools; as `engine_loop`, with texts in the place of choices.

An aborted step's texts that are still wanted stay open, and are in the next step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pyllmcancel.embeddings.pooling import Embedded
from pyllmcancel.request import FinishReason, RequestStatus
from pyllmcancel.step_loop import Part, StepLoop

if TYPE_CHECKING:
    from pyllmcancel._native import Embedder
    from pyllmcancel.embeddings.pooling import EmbedResult, EmbedRow
    from pyllmcancel.embeddings.request import EmbeddingRequest, Text
    from pyllmcancel.embeddings.scheduler import TextScheduler
    from pyllmcancel.endings import Endings
    from pyllmcancel.observer import Observer, StepTrace
    from pyllmcancel.registry import Registry
    from pyllmcancel.request import Request
    from pyllmcancel.step import StepItem


class EmbeddingLoop(StepLoop["EmbeddingRequest"]):
    """Embeds.

    Parameters
    ----------
    slots
        Most requests that take turns; the others wait.
    """

    def __init__(
        self,
        embedder: Embedder,
        registry: Registry,
        scheduler: TextScheduler,
        endings: Endings,
        *,
        slots: int,
        observer: Observer,
        trace: StepTrace,
    ) -> None:
        super().__init__(registry, scheduler, endings, observer=observer, trace=trace)
        self._embedder = embedder
        self._scheduler = scheduler
        self._slots = slots

    def _admit(self) -> None:
        while (taken := self._registry.take_oldest(self._admissible)) is not None:
            request = cast("EmbeddingRequest", taken)
            if self._never_launched(request):
                continue
            request.admitted_at = time.monotonic()
            request.status = RequestStatus.PREFILL
            self._running.append(request)
            self._scheduler.add(request)

    def _admissible(self, request: Request) -> bool:
        return request.cancellation.requested or len(self._running) < self._slots

    def _compute(self, items: list[StepItem], fixed_cost: float, cost_per_token: float) -> EmbedResult:
        return self._embedder.step(items, fixed_cost=fixed_cost, cost_per_token=cost_per_token)

    def _rest(self) -> None:
        self._embedder.rest()

    def _part(self, item: StepItem) -> Part:
        text = self._scheduler.text(item.seq)
        return Part(text.request, text.index, "prefill")

    def _take_rows(self, rows: Sequence[EmbedRow]) -> None:
        # Looked up first: a text at fault ends its request, and takes the slots of its other texts.
        for text, row in [(self._scheduler.text(row.seq), row) for row in rows]:
            self._take_row(text, row)

    def _take_row(self, text: Text, row: EmbedRow) -> None:
        request = text.request
        text.n_committed += row.n_tokens
        if request.status is RequestStatus.FINISHED:
            return  # another text of it was at fault, a moment ago
        if row.faulty:
            error = f"the model's output for text {text.index} is no embedding: not finite, or all zero"
            self._end(request, FinishReason.ERROR, error=error)
            return
        if row.embedding is None:
            return  # not at its end, or cancelled
        self._scheduler.release(text)
        request.n_left -= 1
        done = Embedded(text.index, "", finish_reason=FinishReason.STOP, embedding=row.embedding)
        if request.n_left:
            self._outbox.add(request.sink, done)
            return
        self._running.remove(request)
        self._scheduler.remove(request)
        self._endings.conclude(request, FinishReason.STOP, self._outbox, last=done)

    def _end(
        self, request: EmbeddingRequest, finish_reason: FinishReason, *, keep: bool = False, error: str | None = None
    ) -> None:
        """End a request before all its texts are done: the slots first, then the event."""
        self._scheduler.remove(request)
        self._running.remove(request)
        self._endings.conclude(request, finish_reason, self._outbox, error=error)
