"""A request for embeddings: its texts, and their progress."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyllmcancel.events import Delta, Usage
from pyllmcancel.requests.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel.cancellation import Cancellation
    from pyllmcancel.events import Ending, Sink
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.requests.request import Origin, RequestSummary

MAX_TEXTS = 2048  # texts of one request; OpenAI's limit


@dataclass(eq=False, slots=True)
class Text:
    """One text of a request. Written by the engine thread only."""

    request: EmbeddingRequest
    index: int
    tokens: Sequence[int]
    seq: int | None = None  # set while it is being computed
    n_committed: int = 0  # the number of computed tokens

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_committed


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Embedded(Delta):
    """One text of a request is done; `index` is its index among the request's texts."""

    embedding: NDArray[np.float32]


class EmbeddingRequest(Request):
    """A request whose answer is a vector for each of its texts; it generates nothing, so it has no choices."""

    def __init__(self, cancellation: Cancellation, **origin: Unpack[Origin]) -> None:
        super().__init__(cancellation, **origin)
        self.texts: Sequence[Text] = ()
        # Written by the engine thread only, once they are filled.
        self.not_begun = deque[Text]()
        self.n_left = 0

    def fill(self, texts: Sequence[Sequence[int]], sink: Sink, params: GenerationParams) -> None:
        self.params = params
        self.sink = sink
        self.texts = [Text(self, index, tokens) for index, tokens in enumerate(texts)]
        self.not_begun.extend(self.texts)
        self.n_left = len(self.texts)

    @property
    def n_prompt_tokens(self) -> int:
        return sum(len(text.tokens) for text in self.texts)

    def usage(self) -> Usage:
        """The tokens processed so far."""
        return Usage(sum(text.n_committed for text in self.texts))

    def summary(self, ending: Ending | None = None) -> RequestSummary:
        """As `Request.summary`; `n` counts the texts."""
        return replace(super().summary(ending), n=len(self.texts) or 1)

    def _slots(self) -> tuple[int, ...]:
        return tuple(text.seq for text in self.texts if text.seq is not None)
