"""Rankings of documents, in the forms of Jina, Cohere and Hugging Face's TEI: the body, its pairs, and the answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from pydantic import ConfigDict, Field, StrictStr

from pyllmcancel.embeddings.pairs import pairs_of
from pyllmcancel.embeddings.request import MAX_TEXTS
from pyllmcancel.errors import ContextLengthError, InvalidRequestError, PairLengthError
from pyllmcancel.server.embeddings.answer import EmbeddingUsage
from pyllmcancel.server.embeddings.body import MANY, WholeBody
from pyllmcancel.server.wire.fields import Answer, Sent, optional
from pyllmcancel.server.wire.sampling import MAX_INT

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel.embeddings.pairs import Pairs
    from pyllmcancel.events import Usage
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.wire.tokens import TextReader


class Document(Sent):
    """A document with fields of its client's, of which the text is ranked."""

    model_config = ConfigDict(extra="ignore")

    text: StrictStr


class RankBody(WholeBody):
    """The body of ``POST /v1/rerank``. With `documents` the answer has Jina's form, with `texts` it has TEI's."""

    # The text is ranked, whatever other fields an object has.
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rank_fields": (["text"],)}

    query: StrictStr = Field(min_length=1, examples=["What is a panda?"])
    documents: Annotated[list[StrictStr | Document], MANY] | None = optional(
        f"Texts, or objects with a `text`; at most {MAX_TEXTS:,}.",
        examples=[["The giant panda is a bear.", "Paris is a city."]],
    )
    texts: Annotated[list[StrictStr], MANY] | None = optional("TEI's `documents`.")
    top_n: int | None = optional("Number of documents in the answer, the best ones; null: all.", 1)
    return_documents: bool = Field(False, description="Jina's: repeat each document in the answer.")
    return_text: bool = Field(False, description="TEI's: repeat each text in the answer.")
    raw_scores: bool | None = optional(
        "TEI's. false: scores between 0 and 1, the logistic function of the model's own. true and null: the"
        " model's own, as in llama-server."
    )
    max_tokens_per_doc: int | None = optional("Cohere's: cut documents after this many tokens.", 1)
    truncate_prompt_tokens: int | None = optional(
        "vLLM's: cut documents so that the query and one have this number of tokens; -1: as many as fit.", -1, MAX_INT
    )
    truncate: bool = optional(
        "TEI's: cut documents that are too long for the model, instead of refusing the request.", default=False
    )
    truncation_direction: Literal["left", "right", "Left", "Right"] = optional(
        "TEI's: the side on which documents are cut.", default="right"
    )

    @property
    def cuts(self) -> bool:
        """True if documents are cut, not refused, if they are too long."""
        return self.truncate or self.max_tokens_per_doc is not None or self.truncate_prompt_tokens is not None

    def ranked(self) -> list[str]:
        """Return the texts to rank; InvalidRequestError if there are none, or two lists of them."""
        if self.documents is not None and self.texts is not None:
            raise InvalidRequestError("documents and texts exclude each other", "texts")
        given = self.documents or self.texts
        if given is None:
            raise InvalidRequestError("documents are missing: a list of texts", "documents")
        return [one.text if isinstance(one, Document) else one for one in given]


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
    """The answer as JSON. To `squash` is for scores between 0 and 1, where the model gives others."""

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
        # The best one first; of equal ones the first in the request.
        best = sorted(self._scores, key=lambda index: (-self._scores[index], index))[: self._body.top_n]
        results = f"[{','.join(entries[index] for index in best)}]"
        if self._body.texts is not None:
            return results
        tokens: EmbeddingUsage = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        head = f'"model":{json.dumps(self._model_name)},"object":"list","usage":{json.dumps(tokens)}'
        return f'{{{head},"results":{results}}}'


def logistic(score: float) -> float:
    """Return a number between 0 and 1 that grows with `score`, without an overflow at any."""
    return 1.0 / (1.0 + math.exp(-score)) if score >= 0.0 else math.exp(score) / (1.0 + math.exp(score))


MAX_PAIR_TOKENS = 1 << 22  # tokens of all pairs: the query is in each of them, so that the body's length says nothing


class PairReader:
    """Reads the pairs of one body.

    Raises InvalidRequestError, in all methods, for what the model cannot rank.
    """

    def __init__(self, texts: TextReader, body: RankBody, pause: Pause) -> None:
        self._texts = texts
        self._body = body
        self._pause = pause
        self._param = "query"  # the field whose text is being read
        self._must_fit = True
        self._n_max = texts.n_ctx  # tokens of a pair

    def read(self) -> list[Sequence[int]]:
        documents = self._body.ranked()
        pairs = self._pairs()
        self._param, self._must_fit = "documents" if self._body.texts is None else "texts", not self._body.cuts
        found: list[Sequence[int]] = []
        n_tokens = 0
        for index, document in enumerate(documents):
            found.append(self._pair(pairs, index, document))
            n_tokens += len(found[-1])
            if n_tokens > MAX_PAIR_TOKENS:
                message = f"the query and its documents have more than {MAX_PAIR_TOKENS:,} tokens, pair by pair"
                raise InvalidRequestError(message, self._param)
        return found

    def _pairs(self) -> Pairs:
        pairs = pairs_of(self._texts.model, self._body.query, self._tokenize)
        n_tokens = len(pairs.tokens(""))
        if n_tokens >= self._texts.n_ctx:
            message = f"the query leaves no room for a document: it has {n_tokens:,} tokens of {self._texts.n_ctx:,}"
            raise InvalidRequestError(message, "query")
        if self._body.max_tokens_per_doc is not None:
            self._n_max = min(self._n_max, n_tokens + self._body.max_tokens_per_doc)
        wanted = self._body.truncate_prompt_tokens
        if wanted is not None and wanted >= 0:
            self._n_max = min(self._n_max, wanted)
        if self._n_max <= n_tokens:
            message = f"the query alone has {n_tokens:,} tokens, so that no document has a place"
            raise InvalidRequestError(message, "truncate_prompt_tokens")
        return pairs

    def _pair(self, pairs: Pairs, index: int, document: str) -> Sequence[int]:
        n_max = self._n_max
        if self._body.cuts:
            keep_end = self._body.truncation_direction.lower() == "left"
            return pairs.cut(self._texts.part_of(document, keep_end=keep_end), n_max, keep_end=keep_end)
        try:
            tokens = pairs.tokens(document)
        except ContextLengthError as error:
            raise PairLengthError(index, error.n_prompt_tokens, n_max, self._param) from error
        if len(tokens) > n_max:
            raise PairLengthError(index, len(tokens), n_max, self._param)
        return tokens

    def _tokenize(self, text: str, *, parse_special: bool) -> Sequence[int]:
        options = {"add_special": False, "parse_special": parse_special, "must_fit": self._must_fit}
        return self._texts.tokens(text, self._param, self._pause, **options)
