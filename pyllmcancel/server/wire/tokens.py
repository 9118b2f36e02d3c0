"""Tokenizing clients' texts. A text that can never fit is refused by its length; the others are tokenized in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyllmcancel.chat.infill import MAX_AROUND
from pyllmcancel.drafting.sources import PREDICTION
from pyllmcancel.errors import ContextLengthError, InvalidRequestError
from pyllmcancel.inner_tokenizer import InnerTokenizer
from pyllmcancel.pausing import Pause
from pyllmcancel.server.limits import PIECE

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.engine.engine import Engine

# bytes of a token, at most, in nearly all texts; only for texts above this are tokens counted, in pieces
TYPICAL_BYTES = 8
BEFORE_CUT = 64  # extra tokens before a cut: the first tokens after a cut differ from those of the whole text
ANY_PIECE = 256  # used if a token's bytes say nothing about the text's


def text_of(model: Model, tokens: Iterable[int]) -> str:
    """Return the text of tokens, with special ones spelled out; pictures have none."""
    return b"".join(model.piece(token, special=True) for token in tokens if token >= 0).decode("utf-8", "replace")


def special_text(model: Model, name: str) -> str:
    """Return the text of the model's token of this name, such as the one that begins texts; empty if it has none."""
    token = model.special_tokens.get(name)
    return "" if token is None else text_of(model, [token])


class TextReader:
    """Tokenizes for one engine; may be used from any thread.

    A text of n bytes has at least n / (bytes of the longest token) tokens. Whitespace that a control token swallows is
    not considered: a context full of it is refused.
    """

    def __init__(self, engine: Engine) -> None:
        self.model = engine.model
        self.n_ctx = engine.n_ctx
        self._longest = engine.model.longest_piece()
        self._inner = InnerTokenizer(engine.model)
        self._drafts_from_predictions = PREDICTION in engine.draft_sources
        self.bos = special_text(engine.model, "bos")

    def check_length(self, n_characters: int, param: str) -> None:
        """Raise ContextLengthError for texts that no context of ours can hold, however they are tokenized."""
        if self._longest and n_characters > self.n_ctx * self._longest:
            raise ContextLengthError(-(-n_characters // self._longest), self.n_ctx, param, at_least=True)

    def check_mixed(self, mixed: str | Sequence[int | str], param: str) -> None:
        """As `check_length`, for texts and tokens in a row."""
        parts = [mixed] if isinstance(mixed, str) else mixed
        self.check_length(sum(len(part) for part in parts if isinstance(part, str)), param)

    def tokens(
        self,
        text: str | Sequence[int],
        param: str,
        pause: Pause,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        must_fit: bool = True,
        last: int | None = None,
    ) -> Sequence[int]:
        """Return the tokens of a text; tokens are returned unchanged. ContextLengthError, which names `param`, if all
        tokens are to be computed, and cannot fit; otherwise the caller has checked the text's length.

        With `last` this number of last tokens is kept; negative: as many as fit.
        """
        if last:
            most = last if last > 0 else self.n_ctx - 1
            if isinstance(text, str):
                text = text[-(most + BEFORE_CUT) * (self._longest or ANY_PIECE) :]
            read = partial(self.tokens, add_special=add_special, parse_special=parse_special, must_fit=False)
            return read(text, param, pause)[-most:]
        if not isinstance(text, str):
            return text
        if must_fit:
            self.check_length(len(text), param)
            self._check_count(text, param, pause, parse_special)
        pause()
        tokens = self.model.tokenize(text, add_special=add_special, parse_special=parse_special)
        pause()
        return tokens

    def mixed(
        self,
        mixed: str | Sequence[int | str],
        param: str,
        pause: Pause,
        *,
        add_special: bool,
        parse_special: bool,
        must_fit: bool = True,
    ) -> list[int]:
        """Return the tokens of texts and tokens in a row; only a text at the very beginning gets the model's first
        token.
        """
        parts = [mixed] if isinstance(mixed, str) else mixed
        if must_fit:
            self.check_mixed(parts, param)
        found: list[int] = []
        for place, part in enumerate(parts):
            if isinstance(part, int):
                found.append(part)
                continue
            first = add_special and place == 0
            found += self.tokens(part, param, pause, add_special=first, parse_special=parse_special, must_fit=must_fit)
        return found

    def predicted(self, text: str, pause: Pause) -> tuple[int, ...]:
        """Return the tokens of a predicted answer, as many as a context has.

        A prediction is a hint. So one that is too long is cut, not refused. Where nothing is drafted from predictions,
        there is one token at most: the usage counts what was drafted of a prediction, which is none.
        """
        if not text:
            return ()
        if not self._drafts_from_predictions:
            return tuple(self._inner(text[:1])[:1])
        pause()
        tokens = self._inner(text[: TYPICAL_BYTES * self.n_ctx])
        pause()
        return tuple(tokens[: self.n_ctx])

    def end_of(self, text: str) -> str:
        """Return the end of a text before a gap, as much as can be used.

        The cut moves in strides: the tokens after it stay the same.
        """
        stride = MAX_AROUND * (self._longest or ANY_PIECE)
        return text[max(0, (len(text) - stride) // stride * stride) :]

    def part_of(self, text: str, *, keep_end: bool) -> str:
        """Return the end, or the beginning, of a text that will be cut: more than a context can hold."""
        n = (self.n_ctx + BEFORE_CUT) * (self._longest or ANY_PIECE)
        return text[-n:] if keep_end else text[:n]

    def beginning_of(self, text: str) -> str:
        """Return the beginning of a text after a gap, as much as can be used."""
        return text[: MAX_AROUND * (self._longest or ANY_PIECE)]

    def _check_count(self, text: str, param: str, pause: Pause, parse_special: bool) -> None:
        """Count the tokens of pieces. A piece may have some more tokens than in the whole text, but never twice as
        many.
        """
        if len(text) <= max(PIECE, TYPICAL_BYTES * self.n_ctx):
            return
        n_tokens = 0
        for start in range(0, len(text), PIECE):
            pause()
            piece = text[start : start + PIECE]
            n_tokens += len(self.model.tokenize(piece, add_special=False, parse_special=parse_special))
            if n_tokens > 2 * self.n_ctx:
                raise ContextLengthError(n_tokens // 2, self.n_ctx, param, at_least=True)


def check_tokens(tokens: Sequence[int], n_vocab: int, param: str) -> None:
    """Refuse tokens that the model does not have, before their texts are looked up."""
    if tokens and max(tokens) >= n_vocab:
        raise InvalidRequestError(f"token {max(tokens)} is not in the vocabulary of {n_vocab:,}", param)
