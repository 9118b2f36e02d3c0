"""The engine of a model that pools: texts in, one vector out for each. Everything else is `pyllmcancel.engine`'s.

Queue, sessions, deadlines, cancels and endings are the same; only what the engine thread does is another
(`pyllmcancel.embeddings.loop`).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pyllmcancel.cancellation import Cancellation
from pyllmcancel.config import CACHE_TYPES, FLASH_ATTENTION, EngineConfig
from pyllmcancel.embeddings.loop import EmbeddingLoop
from pyllmcancel.embeddings.pooling import Embedded, Pooling
from pyllmcancel.embeddings.request import EmbeddingRequest
from pyllmcancel.embeddings.scheduler import TextScheduler
from pyllmcancel.engine import Engine
from pyllmcancel.errors import InvalidRequestError, TextLengthError
from pyllmcancel.token_stream import ThreadSink, ThreadStream

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

    from pyllmcancel._native import Embedder, Model
    from pyllmcancel.observer import Observer
    from pyllmcancel.request import GenerationParams, Request
    from pyllmcancel.token_stream import Sink

MAX_TEXTS = 2048  # of one request; OpenAI's limit
TEXTS_PER_STEP = 64
LONGEST_CHOSEN = 2048  # tokens; longer texts that must be seen whole are served if `ctx_size` says so


class EmbeddingEngine(Engine):
    """Owns an embedder, and the one thread that computes on it. Every method may be called from any thread.

    Examples
    --------
    >>> with EmbeddingEngine.load(EngineConfig(model=path)) as engine:  # doctest: +SKIP
    ...     vectors = engine.embed(["a text", "another"])  # shape (2, n_embd), rows of length 1
    """

    @classmethod
    def on(
        cls, model: Model, pooling: Pooling, config: EngineConfig, *, native: Any, observer: Observer | None
    ) -> Self:
        """Start an engine on a loaded model; ContextError if it cannot pool."""
        # A text that must be seen whole is one step: the buffers for the longest one are made in advance.
        longest = min(model.n_ctx_train, config.ctx_size or LONGEST_CHOSEN)
        embedder = native.Embedder(
            model,
            n_ctx=config.context_size(model.n_ctx_train),
            n_seq_max=TEXTS_PER_STEP,
            n_batch=config.step_tokens() if pooling is Pooling.LAST else max(config.step_tokens(), longest),
            n_threads=config.n_threads(),
            n_threads_batch=config.n_threads_batch(),
            adapt_threads=config.adapts_threads(),
            pooling=pooling,
            flash_attention=FLASH_ATTENTION[config.flash_attn],
            type_k=CACHE_TYPES[config.cache_type_k],
            type_v=CACHE_TYPES[config.cache_type_v],
        )
        return cls(embedder, config, observer=observer, native=native)

    def _make_loop(self, context: Any) -> EmbeddingLoop:
        self._embedder: Embedder = context
        return EmbeddingLoop(
            context,
            self.registry,
            TextScheduler(context, self.config.max_step_seconds),
            self._endings,
            slots=self.config.parallel,
            observer=self._observer,
            trace=self.trace,
        )

    @property
    def n_ctx(self) -> int:
        """Most tokens of one text."""
        return self._embedder.n_text_max

    @property
    def n_embd(self) -> int:
        """Length of an embedding."""
        return self._embedder.n_embd

    @property
    def pooling(self) -> Pooling:
        return self._embedder.pooling

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
        raise InvalidRequestError("this model makes embeddings, it does not generate", "model")

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
        """Accept a request for an embedding of each text (token ids); `sink` gets an `Embedded` for each, and the end.

        With a `session`, its older request is cancelled.

        Raises
        ------
        InvalidRequestError
            Never servable as it stands; nothing was changed.
        QueueFullError, EngineClosedError
            Not now; nothing was changed.
        """
        self._check(texts)
        if timeout is not None and not timeout >= 0.0:  # NaN is refused too
            raise InvalidRequestError("timeout must not be negative", "timeout")
        cancellation = Cancellation(self._native.CancelFlag())
        made_id = request_id or f"req-{secrets.token_hex(8)}"
        request = EmbeddingRequest(
            made_id, texts, cancellation, sink, timeout=timeout, session=session, arrived_at=arrived_at
        )
        return self._accept(request)

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        if not 1 <= len(texts) <= MAX_TEXTS:
            raise InvalidRequestError(f"a request has 1 to {MAX_TEXTS:,} texts, not {len(texts):,}", "input")
        n_vocab = self.model.n_vocab
        for index, tokens in enumerate(texts):
            if not tokens:
                raise InvalidRequestError(f"text {index} is empty", "input")
            if len(tokens) > self.n_ctx:
                raise TextLengthError(index, len(tokens), self.n_ctx)
            if min(tokens) < 0 or max(tokens) >= n_vocab:
                raise InvalidRequestError(f"text {index} has a token that is not in the vocabulary", "input")

    def text_tokens(self, text: str | Sequence[int]) -> Sequence[int]:
        """The tokens of a text, with what the model wants around it; special tokens in it are read as such."""
        return self.model.tokenize(text, add_special=True, parse_special=True) if isinstance(text, str) else text

    def embed(self, texts: Sequence[str | Sequence[int]], *, timeout: float | None = None) -> NDArray[np.float32]:
        """Embed texts, and wait; an exception in the waiting thread, Ctrl-C too, cancels.

        Returns
        -------
        ndarray
            Shape (len(texts), n_embd); each row has length 1 (L2).
        """
        sink = ThreadSink()
        request = self.submit_texts([self.text_tokens(text) for text in texts], sink, timeout=timeout)
        vectors = np.empty((len(texts), self.n_embd), np.float32)
        with ThreadStream(request, self, sink) as stream:
            for delta in stream:
                vectors[delta.index] = cast("Embedded", delta).embedding
        return vectors
