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
        if not self._puts_a_blank_first:
            return self._model.tokenize(text, add_special=False)
        # A single byte never joins with what follows it.
        following = text.encode() if isinstance(text, str) else text
        return self._model.tokenize(BEGINNING + following, add_special=False)[len(self._beginning) :]

    @cached_property
    def _beginning(self) -> list[int]:
        return self._model.tokenize(BEGINNING, add_special=False)

    @cached_property
    def _puts_a_blank_first(self) -> bool:
        return b"".join(self._model.piece(token, special=True) for token in self._beginning) != BEGINNING
