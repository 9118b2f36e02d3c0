"""A vocabulary of all bytes, to compile a grammar without a model: cost and meaning are the same."""

from __future__ import annotations

END = 256


class PlainBytes:
    """The part of a model that `guidance.Vocabulary` needs."""

    n_vocab = END + 1

    def pieces(self, *, special: bool = False) -> list[bytes]:
        return [self.piece(token, special=special) for token in range(self.n_vocab)]

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token]) if token < END else b"<end>" * special

    def eog_tokens(self) -> list[int]:
        return [END]

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)
