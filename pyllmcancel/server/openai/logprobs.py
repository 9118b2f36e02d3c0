"""Logprobs in OpenAI's two shapes, sent together with the text that they belong to."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from pyllmcancel.server.chat.logprobs import ChatTokenLogprob, Placed, finite, token_name
from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.events import TokenLogprobs


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: Annotated[
        list[float | None], Field(description="null for a prompt's first token, which nothing predicts.")
    ]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class ChatLogprobs(Answer):
    content: list[ChatTokenLogprob] | None
    refusal: None


# The names of tokens as OpenAI writes them here; in a chat they have no such mark.
legacy_name = partial(token_name, mark="bytes:")


class Row(NamedTuple):
    """The data of one token in the `logprobs` of ``/v1/completions``. Nothing predicts a prompt's first token."""

    name: str
    logprob: float | None
    top: dict[str, float] | None
    offset: int


class PromptText:
    """A prompt as its echo shows it.

    The `text` is the client's, or that of its tokens. Each token has a text in `names`, as it stands in logprobs, and
    in `offsets` the character at which that begins.
    """

    def __init__(self, model: Model, prompt: str | Sequence[int], tokens: Sequence[int]) -> None:
        pieces = [model.piece(token, special=True) for token in tokens]
        if isinstance(prompt, str):
            self.text = prompt
            _drop_what_was_added(pieces, prompt.encode())
        else:
            self.text = b"".join(pieces).decode("utf-8", "replace")
        self.names = [legacy_name(piece) for piece in pieces]
        self.offsets = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        known = 0
        for piece in pieces:
            self.offsets.append(min(known, len(self.text)))
            known += len(decoder.decode(piece))


def _drop_what_was_added(pieces: list[bytes], text: bytes) -> None:
    """Drop the token and the blank that a tokenizer may put before a text: the client did not send them."""
    if pieces and not text.startswith(pieces[0]) and b"".join(pieces[1:]).strip() == text.strip():
        pieces[0] = b""
    if b"".join(pieces) == b" " + text:
        first = next(index for index, piece in enumerate(pieces) if piece)
        pieces[first] = pieces[first][1:]


def prompt_rows(model: Model, prompt: PromptText, entries: Sequence[TokenLogprobs]) -> list[Row]:
    """Return the rows of a prompt."""
    # All of them, or none for a prompt that was cut by its time limit.
    known = [None, *entries] if entries else [None] * len(prompt.names)
    return [_row(model, *row) for row in zip(prompt.names, known, prompt.offsets, strict=True)]


def answer_rows(model: Model, placed: Iterable[Placed], shift: int) -> list[Row]:
    """Return the rows of generated tokens, whose text begins `shift` characters into the choice's."""
    name = partial(model.piece, special=True)
    return [_row(model, legacy_name(name(entry.token)), entry, offset + shift) for offset, entry in placed]


def _row(model: Model, name: str, entry: TokenLogprobs | None, offset: int) -> Row:
    if entry is None:
        return Row(name, None, None, offset)
    top: dict[str, float] = {}
    for token, logprob in entry.top.tolist():
        # Among tokens that are written the same way, the likeliest one is shown.
        top.setdefault(legacy_name(model.piece(token, special=True)), finite(logprob))
    logprob = finite(entry.logprob)
    return Row(name, logprob, top | {name: logprob}, offset)
