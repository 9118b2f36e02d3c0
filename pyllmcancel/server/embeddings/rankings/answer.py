"""Answers with the scores of documents, the best ones first."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired

from pydantic import Field

from pyllmcancel.server.embeddings.answer import EmbeddingUsage
from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel.events import Usage
    from pyllmcancel.server.embeddings.rankings.body import RankBody

INDEX = Field(ge=0, description="Index of the document in the request.")


class RankedDocument(Answer):
    text: str


class RankedEntry(Answer):
    index: Annotated[int, INDEX]
    relevance_score: float
    document: NotRequired[RankedDocument]


class RankAnswer(Answer):
    """Jina's answer: the documents, the best ones first."""

    model: str
    object: Literal["list"]
    usage: EmbeddingUsage
    results: list[RankedEntry]


class RankedText(Answer):
    """An entry of TEI's answer, which is a list."""

    index: Annotated[int, INDEX]
    score: float
    text: NotRequired[str]


class RankWording:
    """The answer as JSON.

    Parameters
    ----------
    squash
        True for scores between 0 and 1, where the model gives others.
    """

    def __init__(self, body: RankBody, model_name: str, *, squash: bool) -> None:
        self._body = body
        self._texts = body.ranked()
        self._model_name = model_name
        self._squash = squash
        self._scores: dict[int, float] = {}

    def entry(self, index: int, embedding: NDArray[np.float32]) -> str:
        """Write an entry, and note its score. Of several scores the first one counts, as in llama-server."""
        score = float(str(embedding[0]))  # the shortest number that has the same value in 32 bits
        score = logistic(score) if self._squash else score
        self._scores[index] = score
        if self._body.texts is not None:
            text = RankedText(index=index, score=score)
            if self._body.return_text:
                text["text"] = self._texts[index]
            return json.dumps(text)
        ranked = RankedEntry(index=index, relevance_score=score)
        if self._body.return_documents:
            ranked["document"] = {"text": self._texts[index]}
        return json.dumps(ranked)

    def whole(self, entries: Sequence[str], usage: Usage) -> str:
        results = f"[{','.join(entries[index] for index in self._best())}]"
        if self._body.texts is not None:
            return results
        tokens: EmbeddingUsage = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        head = f'"model":{json.dumps(self._model_name)},"object":"list","usage":{json.dumps(tokens)}'
        return f'{{{head},"results":{results}}}'

    def _best(self) -> Iterable[int]:
        """Return the indices to answer with, the best one first; of equal ones the first in the request."""
        in_order = sorted(self._scores, key=lambda index: (-self._scores[index], index))
        return in_order[: self._body.top_n]


def logistic(score: float) -> float:
    """Return a number between 0 and 1 that grows with `score`, without an overflow at any."""
    return 1.0 / (1.0 + math.exp(-score)) if score >= 0.0 else math.exp(score) / (1.0 + math.exp(score))
