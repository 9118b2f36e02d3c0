"""Embeddings, the loop's second workload: one vector for each text of a request, or its tokens' vectors, or scores.

After an aborted step, the texts of live requests stay open, and are in the next step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pyllmcancel.embeddings.request import MAX_TEXTS, Embedded, EmbeddingRequest
from pyllmcancel.embeddings.scheduler import TextScheduler
from pyllmcancel.errors import (
    ContextError,
    ContextLengthError,
    InvalidRequestError,
    PairLengthError,
    TextLengthError,
)
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.pooling import Pooling
from pyllmcancel.requests.adapter_table import AdapterTable
from pyllmcancel.requests.params import NO_PARAMS, check_deadlines
from pyllmcancel.scheduling.scheduler import Capacity
from pyllmcancel.scheduling.workload import Facts, Finished, Progress, StepMember, Steps, Workload

if TYPE_CHECKING:
    from typing import Self

    from pyllmcancel._native import Embedder, Model
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.embeddings.request import Text
    from pyllmcancel.events import Sink
    from pyllmcancel.pooling import EmbedRow
    from pyllmcancel.requests.observer import Observer
    from pyllmcancel.requests.request import Request
    from pyllmcancel.scheduling.workload import Update
    from pyllmcancel.step import StepItem

TEXTS_PER_STEP = 64
MAX_NUMBERS = 1 << 22  # numbers of an answer with the vectors of tokens
LONGEST_CHOSEN = 2048  # in tokens; longer texts that cannot be split are served if `ctx_size` allows it


VARIES = "texts are computed together, for which invariance was not measured"


class Embedding(Workload):
    """The workload that embeds, by an `embedder` that nothing else uses. Any thread may call `fill`."""

    core: Embedder
    scheduler: TextScheduler
    request_type = EmbeddingRequest

    def __init__(self, embedder: Embedder, config: EngineConfig, native: Any) -> None:
        self.core = embedder
        self.native = native
        self.new_flag = native.CancelFlag
        self.facts = Facts(
            model=embedder.model,
            config=config,
            adapters=AdapterTable(embedder.model, config),
            n_ctx=embedder.n_text_max,
            capacity=Capacity(embedder.n_seq_max, embedder.n_ctx),  # no cells for a model that needs none
            n_slots=config.parallel,
            varies_because=VARIES,
            pooling=embedder.pooling,
            n_embd=embedder.n_embd,
        )
        self.scheduler = TextScheduler(embedder, config)
        self.steps = Steps(embedder, self.scheduler.cost)

    @classmethod
    def on(cls, model: Model, pooling: Pooling, config: EngineConfig, native: Any) -> Self:
        """Make an embedder on a loaded model; ContextError if the model cannot pool."""
        embedder = native.Embedder(
            model,
            **cls.context_options(model, pooling, config),
            **config.thread_options(),
        )
        return cls(embedder, config, native)

    @staticmethod
    def context_options(model: Model, pooling: Pooling, config: EngineConfig) -> dict[str, Any]:
        """Return those of the embedder's options on which its memory depends."""
        # A text that cannot be split is one step: the buffers for the longest one are made in advance.
        longest = min(model.n_ctx_train, config.ctx_size or LONGEST_CHOSEN)
        return {
            "n_ctx": config.context_size(model.n_ctx_train),
            "n_seq_max": TEXTS_PER_STEP,
            "n_batch": config.step_tokens() if splits(model, pooling) else max(config.step_tokens(), longest),
            "pooling": pooling,
            **config.memory_options(),
        }

    def fill(
        self,
        request: EmbeddingRequest,
        texts: Sequence[Sequence[int]],
        sink: Sink,
        timeout: float | None = None,
        queue_timeout: float | None = None,
    ) -> None:
        """Set what a request computes; InvalidRequestError if it can never be served in this form."""
        self._check(texts)
        params = replace(NO_PARAMS, max_tokens=0, timeout=timeout, queue_timeout=queue_timeout)
        check_deadlines(params)
        request.fill(texts, sink, params)
        request.adapters = self.facts.adapters.scales()

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequestError(f"a request may have 1 to {MAX_TEXTS:,} texts, not {len(texts):,}", "input")
        if self.core.pooling is Pooling.NONE and (n := self.core.n_embd * sum(map(len, texts))) > MAX_NUMBERS:
            raise InvalidRequestError(f"the answer may have {MAX_NUMBERS:,} numbers, not {n:,}", "input")
        n_vocab = self.core.model.n_vocab
        for index, tokens in enumerate(texts):
            if not tokens:
                raise InvalidRequestError(f"text {index} is empty", "input")
            if len(tokens) > self.facts.n_ctx:
                raise self._too_long(index, len(tokens))
            if min(tokens) < 0 or max(tokens) >= n_vocab:
                raise InvalidRequestError(f"text {index} has a token that is not in the vocabulary", "input")

    def _too_long(self, index: int, n_tokens: int) -> ContextLengthError:
        if self.core.pooling is Pooling.RANK:
            return PairLengthError(index, n_tokens, self.facts.n_ctx, "documents")
        return TextLengthError(index, n_tokens, self.facts.n_ctx)

    # -- into and out of slots ----------------------------------------------------------------------------------------

    def pause(self, requests: Sequence[Request], *, foreground_comes: bool) -> None:
        """Pause idle requests while others are there, and resume them. No other is paused: an answer has no more events
        than its request has texts.
        """
        foreground_computes = foreground_comes or not all(request.is_idle for request in requests)
        for request in requests:
            must_pause = request.is_idle and (foreground_computes or request.held_by_front)
            if must_pause != request.paused:
                request.paused = must_pause
                change = self.scheduler.set_aside if must_pause else self.scheduler.add
                change(cast("EmbeddingRequest", request))

    def start(self, request: Request, observer: Observer) -> list[Update]:
        request.admitted_at = time.monotonic()
        request.status = RequestStatus.PREFILL
        self.scheduler.add(cast("EmbeddingRequest", request))
        observer.request_admitted(request)
        return []

    def release(self, request: Request, *, keep: bool = False) -> None:
        self.scheduler.remove(cast("EmbeddingRequest", request))

    # -- steps --------------------------------------------------------------------------------------------------------

    def plan(self, observer: Observer) -> tuple[list[StepItem], list[Update]]:
        return self.scheduler.plan(), []

    def member(self, item: StepItem) -> StepMember:
        text = self.scheduler.text(item.seq)
        return StepMember(text.request, text.index, "prefill")

    def take(self, rows: Sequence[EmbedRow], observer: Observer) -> list[Update]:
        updates: list[Update] = []
        # Each row is looked at first: a faulty text ends its request, which frees the slots of its other texts.
        for text, row in [(self.scheduler.text(row.seq), row) for row in rows]:
            if text.seq is not None:  # otherwise another text has ended the request
                updates += self._take_row(text, row)
        return updates

    def _take_row(self, text: Text, row: EmbedRow) -> list[Update]:
        request = text.request
        text.n_committed += row.n_tokens
        if row.faulty:
            error = f"the model's output for text {text.index} is no result: not finite, or all zero"
            self.release(request)
            return [Finished(request, FinishReason.ERROR, error=error)]
        if row.embedding is None:
            return []  # not at its end, or cancelled
        self.scheduler.release(text)
        request.n_left -= 1
        done = Embedded(text.index, "", finish_reason=FinishReason.STOP, embedding=row.embedding)
        if request.n_left:
            return [Progress(request, done)]
        self.release(request)
        return [Finished(request, FinishReason.STOP, done)]


def pooling_of(model: Model, wanted: str, *, required: bool = False) -> Pooling | None:
    """Return the model's pooling, or the `wanted` one; None if it generates, ContextError if that is not allowed."""
    if wanted != "auto":
        pooling = Pooling[wanted.upper()]
        return pooling if required or pooling is not Pooling.NONE else None
    architecture = model.metadata.get("general.architecture", "")
    pooling = Pooling(int(model.metadata.get(f"{architecture}.pooling_type", Pooling.NONE)))
    if pooling is not Pooling.NONE:
        return pooling
    if required:
        raise ContextError("this model does not pool; to serve embeddings of it, choose a --pooling")
    return None


def splits(model: Model, pooling: Pooling) -> bool:
    """Return whether a text may be computed in several steps, as far as this is known before an embedder is made."""
    return pooling is Pooling.LAST or (pooling is Pooling.RANK and model.memory_kind != "none")
