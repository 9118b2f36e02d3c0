"""The texts of the last requests, for ``--expose-prompts``: kept as tokens, and detokenized on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyllmcancel.embeddings.request import EmbeddingRequest
from pyllmcancel.events import Ending
from pyllmcancel.media.values import text_tokens
from pyllmcancel.requests.observer import Observer
from pyllmcancel.requests.request import Request, RequestSummary
from pyllmcancel.shares import Remembered

if TYPE_CHECKING:
    from pyllmcancel._native import Model

MAX_CHARACTERS = 2_000
MAX_REQUESTS = 1_024
MAX_BYTES = 4 * MAX_CHARACTERS  # bytes of UTF-8


@dataclass(slots=True)
class Text:
    """Tokens, until they are detokenized."""

    tokens: Sequence[int]
    spelled: str | None = None


class Texts(Observer):
    """An observer that keeps the end of each request's first prompt, and the beginning of its first choice's answer.

    Detokenizing one takes some tenths of a millisecond: a text has at most `MAX_CHARACTERS` tokens.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = threading.Lock()
        # By id and time: written by the threads that submit and that end, under the lock.
        self._prompts = Remembered[tuple[str, float], Text](MAX_REQUESTS)
        self._outputs = Remembered[tuple[str, float], Text](MAX_REQUESTS)

    def request_added(self, request: Request) -> None:
        prompt = request.texts[0].tokens if isinstance(request, EmbeddingRequest) else request.choices[0].prompt
        self._keep(self._prompts, request, prompt[-MAX_CHARACTERS:])

    def request_ended(self, request: Request, ending: Ending) -> None:
        output = request.choices[0].generated[: MAX_CHARACTERS + 1] if request.choices else []
        if output and self._model.is_eog(output[-1]):
            output.pop()
        self._keep(self._outputs, request, output)

    def _keep(self, table: Remembered[tuple[str, float], Text], request: Request, tokens: Sequence[int]) -> None:
        with self._lock:
            table.put(request.owner, (request.id, request.created_at), Text(tokens))

    def prompt(self, summary: RequestSummary) -> str:
        """Return the end of the prompt; empty if it is not kept any more."""
        text = self._prompts.get(summary.owner, (summary.id, summary.created_at)) or Text((), "")
        if text.spelled is None:
            text.spelled = as_text(reversed(self._pieces(reversed(text.tokens))))[-MAX_CHARACTERS:]
            text.tokens = ()
        return text.spelled

    def output(self, summary: RequestSummary) -> str | None:
        """Return the beginning of the answer; None while it is being written, or if it is not kept any more."""
        text = self._outputs.get(summary.owner, (summary.id, summary.created_at))
        if text is None or summary.ending is None:
            return None
        if text.spelled is None:
            text.spelled = as_text(self._pieces(text.tokens))[:MAX_CHARACTERS]
            text.tokens = ()
        return text.spelled

    def _pieces(self, tokens: Iterable[int]) -> list[bytes]:
        """Return as many pieces as can be shown."""
        pieces: list[bytes] = []
        n_bytes = 0
        for token in text_tokens(tokens):
            if n_bytes >= MAX_BYTES:
                break
            pieces.append(self._model.piece(token, special=True))
            n_bytes += len(pieces[-1])
        return pieces


def as_text(pieces: Iterable[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")
