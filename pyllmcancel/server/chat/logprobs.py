"""Logprobs of an answer's tokens, sent together with the text that they belong to."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.events import Delta, TokenLogprobs

# OpenAI writes this for a token that had no chance; JSON has no infinity.
LEAST = -9999.0


class TokenLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class Placed(NamedTuple):
    """A token's logprobs, and the character of its choice's text at which its own text begins."""

    offset: int
    entry: TokenLogprobs


class Ledger:
    """One choice's logprobs. Like its text, they are held back until it is certain that no stop string swallows them.

    `piece` returns the bytes of a token in the text.
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_known = 0  # characters of the tokens that came
        self._n_shown = 0  # characters of the text that was sent
        self._waiting: deque[Placed] = deque()

    def take(self, delta: Delta) -> list[Placed]:
        """Return the entries that belong to a delta's text. The last delta takes the rest, cut where a stop string
        begins.
        """
        final, stopped = delta.finish_reason is not None, delta.stop_text is not None
        for entry in delta.logprobs:
            self._waiting.append(Placed(self._n_known, entry))
            self._n_known += len(self._decoder.decode(self._piece(entry.token)))
        self._n_shown += len(delta.text)
        certain = []
        while self._waiting and (self._waiting[0].offset < self._n_shown or (final and not stopped)):
            certain.append(self._waiting.popleft())
        return certain


def token_logprobs(model: Model, entry: TokenLogprobs) -> ChatTokenLogprob:
    """Return one token's logprobs, with those of the likeliest tokens in its place."""
    return {
        **_token(model, entry.token, entry.logprob),
        "top_logprobs": [_token(model, token, logprob) for token, logprob in entry.top.tolist()],
    }


def _token(model: Model, token: int, logprob: float) -> TokenLogprob:
    piece = model.piece(token)
    if not piece:
        # A control token has a name, and no bytes.
        name = model.piece(token, special=True).decode("utf-8", "replace")
        return {"token": name, "logprob": finite(logprob), "bytes": None}
    return {"token": token_name(piece), "logprob": finite(logprob), "bytes": list(piece)}


def token_name(piece: bytes, mark: str = "") -> str:
    """Return a token's text; a part of a character is escaped, after the mark."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in piece)


def finite(logprob: float) -> float:
    return max(logprob, LEAST)
