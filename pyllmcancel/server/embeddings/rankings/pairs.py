"""Tokens of the pairs of a request to rank, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.embeddings.pairs import pairs_of
from pyllmcancel.errors import ContextLengthError, InvalidRequestError, PairLengthError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel.embeddings.pairs import Pairs
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.embeddings.rankings.body import RankBody
    from pyllmcancel.server.wire.tokens import TextReader

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
        self._param, self._must_fit = self._body.documents_field, not self._body.cuts
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
