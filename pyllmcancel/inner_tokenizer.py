"""Tokens of a text that stands in the middle of another one."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel._native import Model

BEGINNING = b"\x02"


class InnerTokenizer:
    """Tokenizes texts as in any place but the beginning, where SentencePiece puts a blank before a text."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, text: bytes | str) -> list[int]:
        # A single byte never joins with what follows it.
        before = BEGINNING if self._n_tokens_before else b""
        following = text.encode() if isinstance(text, str) else text
        return self._model.tokenize(before + following, add_special=False)[self._n_tokens_before :]

    @cached_property
    def _n_tokens_before(self) -> int:
        """The number of tokens that a text has to have before it; 0 if no blank is put before it."""
        tokens = self._model.tokenize(BEGINNING, add_special=False)
        pieces = b"".join(self._model.piece(token, special=True) for token in tokens)
        return 0 if pieces == BEGINNING else len(tokens)
