"""The calls of a program that embeds the engine: they submit a request, and return its stream or its results."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pyllmcancel.embeddings.pairs import pairs_of
from pyllmcancel.pooling import check_embeds, check_ranks
from pyllmcancel.requests.params import GenerationParams
from pyllmcancel.requests.token_stream import AsyncStream, Controls, LoopSink, ThreadSink, ThreadStream
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.scheduling.workload import Facts

if TYPE_CHECKING:
    from typing import Unpack

    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel.embeddings.request import Embedded
    from pyllmcancel.engine.call_options import Options
    from pyllmcancel.events import Sink
    from pyllmcancel.requests.request import Origin, Request


class Calls(Facts, Controls, ABC):
    """The calls, for an engine that can `submit`. Each may be made from any thread."""

    advised_sampling: Mapping[str, Any]

    @abstractmethod
    def submit(
        self, prompts: Sequence[Sequence[int]], params: GenerationParams, sink: Sink, **origin: Unpack[Origin]
    ) -> Request: ...

    @abstractmethod
    def submit_texts(
        self, texts: Sequence[Sequence[int]], sink: Sink, *, timeout: float | None = None, **origin: Unpack[Origin]
    ) -> Request: ...

    def generate(
        self, prompt: str | Sequence[int], params: GenerationParams | None = None, **options: Unpack[Options]
    ) -> ThreadStream:
        """Generate for a reader in a plain thread.

        Parameters
        ----------
        prompt
            A text, or token ids. A text is no chat: no template is applied.
        params
            All parameters of the request; without them `options` count.
        options
            Fields of GenerationParams or SamplingParams. Those that are missing have the values that the model's file
            advises, else the classes' defaults.

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
        request = self.submit([self.tokens(prompt)], params or self._params(options), sink)
        return ThreadStream(request, self, sink)

    def agenerate(
        self, prompt: str | Sequence[int], params: GenerationParams | None = None, **options: Unpack[Options]
    ) -> AsyncStream:
        """Generate for a reader in the running event loop. Parameters and errors are those of `generate`."""
        sink = LoopSink(asyncio.get_running_loop())
        request = self.submit([self.tokens(prompt)], params or self._params(options), sink)
        return AsyncStream(request, self, sink)

    def embed(self, texts: Sequence[str | Sequence[int]], *, timeout: float | None = None) -> NDArray[np.float32]:
        """Embed texts, and wait. An exception in the waiting thread, such as Ctrl-C, cancels the request.

        Returns
        -------
        ndarray
            Shape (len(texts), n_embd); each row has length 1 (L2).
        """
        import numpy as np  # imported late: the command can be interrupted by Ctrl-C while NumPy is imported

        check_embeds(self.pooling)
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
        check_embeds(self.pooling, tokens=True)
        return self._embedded([self.text_tokens(text) for text in texts], timeout)

    def rank(self, query: str, documents: Sequence[str], *, timeout: float | None = None) -> NDArray[np.float32]:
        """Score documents by a query, and wait. An exception in the waiting thread cancels the request.

        Returns
        -------
        ndarray
            Shape (len(documents),): the score of each document, the first one if the model has several.
        """
        import numpy as np

        check_ranks(self.pooling)
        pairs = pairs_of(self.model, query, partial(self.model.tokenize, add_special=False))
        scores = self._embedded([pairs.tokens(document) for document in documents], timeout)
        return np.stack(scores)[:, 0]

    def tokens(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Return the tokens of a prompt; token ids are returned as they are."""
        return self.model.tokenize(prompt) if isinstance(prompt, str) else prompt

    def text_tokens(self, text: str | Sequence[int]) -> Sequence[int]:
        """Return the tokens of a text to embed, with the tokens that the model wants around it. Special tokens in the
        text are recognised.
        """
        return self.model.tokenize(text, add_special=True, parse_special=True) if isinstance(text, str) else text

    def _params(self, options: Options) -> GenerationParams:
        return generation_params(**cast("Options", {**self.advised_sampling, **options}))

    def _embedded(self, texts: Sequence[Sequence[int]], timeout: float | None) -> list[NDArray[np.float32]]:
        """Wait for the results of texts, in their order."""
        sink = ThreadSink()
        request = self.submit_texts(texts, sink, timeout=timeout)
        with ThreadStream(request, self, sink) as stream:
            found = {delta.index: cast("Embedded", delta).embedding for delta in stream}
        return [found[index] for index in range(len(texts))]


def generation_params(**options: Unpack[Options]) -> GenerationParams:
    """Make GenerationParams from flat options, which include fields of SamplingParams."""
    rest: dict[str, Any] = {**options}
    names = [field.name for field in fields(GenerationParams) if field.name != "sampling"]
    own = {name: rest.pop(name) for name in names if name in rest}
    return GenerationParams(sampling=SamplingParams(**rest), **own)
