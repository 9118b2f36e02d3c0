"""The reader of the engine's output, which makes parts of a response from it, with their logprobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.server.chat.answer_parser import Content, Part, Reasoning
from pyllmcancel.server.chat.logprobs import Ledger, token_logprobs

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.events import Delta
    from pyllmcancel.server.chat.logprobs import Placed
    from pyllmcancel.server.chat.turn import ChatTurn
    from pyllmcancel.server.responses.answer import OutputTokenLogprob, TopLogprob


class Reader:
    """Reads one answer.

    Attributes
    ----------
    n_reasoning
        The number of reasoning tokens so far; a delta that ends reasoning counts as the answer's.
    """

    def __init__(self, model: Model, turn: ChatTurn) -> None:
        shows = turn.params.shows
        self._model = model
        self._parser = turn.new_parser()
        self._ledger = Ledger(lambda token: model.piece(token, special=shows(token)))
        self._logprobs: list[OutputTokenLogprob] = []  # of text that is held back
        self.n_reasoning = 0
        self.last: Delta | None = None

    def read(self, delta: Delta) -> tuple[list[Part], list[OutputTokenLogprob]]:
        """Return the parts that a delta completes, and the logprobs of the content among them."""
        parts = list(self._parser.feed(delta.text))
        if delta.finish_reason is not None:
            self.last = delta
            parts += self._parser.finish()
        if parts and isinstance(parts[-1], Reasoning):
            self.n_reasoning += len(delta.tokens)
        self._logprobs += map(self._named, self._ledger.take(delta))
        if not parts:
            return [], []
        told, self._logprobs = self._logprobs, []
        # This API has no place for logprobs of reasoning and calls.
        return parts, told if any(isinstance(part, Content) for part in parts) else []

    def _named(self, placed: Placed) -> OutputTokenLogprob:
        found = token_logprobs(self._model, placed.entry)
        top: list[TopLogprob] = [{**one, "bytes": one["bytes"] or []} for one in found["top_logprobs"]]
        return {**found, "bytes": found["bytes"] or [], "top_logprobs": top}
