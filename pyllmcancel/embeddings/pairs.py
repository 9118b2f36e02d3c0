"""Pairs of a query and a document, in the form in which a ranking model reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel._native import Model

TEMPLATE = "tokenizer.chat_template.rerank"  # in a model's metadata
PLACES = re.compile(r"(\{query\}|\{document\})")
# A model of these architectures ends with a softmax over its labels, so that its scores are probabilities.
GIVING_PROBABILITIES = frozenset({"qwen3", "qwen3vl"})


class Tokenize(Protocol):
    """Returns the tokens of a text, without those that the vocabulary adds to texts."""

    def __call__(self, text: str, *, parse_special: bool) -> Sequence[int]: ...


def pairs_of(model: Model, query: str, tokenize: Tokenize) -> Pairs:
    """Return the pairs of `query` in the model's form: its own template or ``[BOS]query[EOS][SEP]document[EOS]``, of
    whose special tokens those are there that the vocabulary adds to texts.

    Both are the forms of llama-server.
    """
    template = model.metadata.get(TEMPLATE)
    return PlainPairs(model, query, tokenize) if template is None else TemplatePairs(template, model, query, tokenize)


class PlainPairs:
    """The query's tokens and the document's, between special tokens."""

    def __init__(self, model: Model, query: str, tokenize: Tokenize) -> None:
        special = model.special_tokens
        eos = special.get("eos", special.get("sep"))
        first = [special["bos"]] if model.adds_bos and "bos" in special else []
        between = [special["sep"]] if model.adds_sep and "sep" in special else []
        self._tokenize = tokenize
        self._after = [eos] if model.adds_eos and eos is not None else []
        self._before = [*first, *tokenize(query, parse_special=False), *self._after, *between]

    def tokens(self, document: str) -> list[int]:
        return [*self._before, *self._tokenize(document, parse_special=False), *self._after]

    def cut(self, document: str, n_max: int, *, keep_end: bool) -> list[int]:
        """Return at most `n_max` tokens of the pair, whose document is cut at one end. The rest must fit."""
        tokens = self._tokenize(document, parse_special=False)
        kept = kept_part(tokens, n_max - len(self._before) - len(self._after), keep_end=keep_end)
        return [*self._before, *kept, *self._after]


class TemplatePairs:
    """The model's template with the texts in it; special tokens are recognised everywhere, as in llama-server."""

    def __init__(self, template: str, model: Model, query: str, tokenize: Tokenize) -> None:
        self._parts = PLACES.split(template)
        self._query = query
        self._model = model
        self._tokenize = tokenize

    def tokens(self, document: str) -> list[int]:
        # All at once: a query that spells a place of the template does not become one.
        texts = {"{query}": self._query, "{document}": document}
        return list(self._tokenize("".join(texts.get(part, part) for part in self._parts), parse_special=True))

    def cut(self, document: str, n_max: int, *, keep_end: bool) -> list[int]:
        words = self._tokenize(document, parse_special=False)
        n_kept = len(words)
        while len(tokens := self.tokens(document)) > n_max and n_kept:
            # The document's tokens are others in the pair, so that one cut may leave a few too many.
            n_kept = max(0, n_kept - (len(tokens) - n_max))
            kept = kept_part(words, n_kept, keep_end=keep_end)
            document = b"".join(self._model.piece(token) for token in kept).decode("utf-8", "ignore")
        return tokens


def kept_part(tokens: Sequence[int], n: int, *, keep_end: bool) -> Sequence[int]:
    """Return `n` tokens, the first or the last ones."""
    return tokens[max(0, len(tokens) - n) :] if keep_end else tokens[: max(0, n)]


Pairs = PlainPairs | TemplatePairs


def gives_probabilities(model: Model) -> bool:
    """Return whether the model's scores lie between 0 and 1 already."""
    return model.metadata.get("general.architecture") in GIVING_PROBABILITIES
