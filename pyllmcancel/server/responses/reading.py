"""The reader of the engine's output, which makes parts of a response from it, with their logprobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyllmcancel.server.chat.logprobs import Ledger, token_logprobs
from pyllmcancel.server.chat.parts import Arguments, Content, Part, Reasoning

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.events import Delta, FinishReason
    from pyllmcancel.server.chat.logprobs import Placed
    from pyllmcancel.server.chat.turn import ChatTurn
    from pyllmcancel.server.responses.answer import OutputTokenLogprob, TopLogprob


@dataclass(slots=True)
class Told:
    """Parts that came together; `logprobs` are of the content among them."""

    parts: list[Part]
    logprobs: list[OutputTokenLogprob] = field(default_factory=list)


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
        self.finish_reason: FinishReason | None = None

    def read(self, delta: Delta) -> Told:
        parts = list(self._parser.feed(delta.text))
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            parts += self._parser.finish()
        if parts and isinstance(parts[-1], Reasoning):
            self.n_reasoning += len(delta.tokens)
        self._logprobs += map(self._named, self._ledger.take(delta))
        if not parts:
            return Told(parts)
        told, self._logprobs = self._logprobs, []
        # This API has no place for logprobs of reasoning and calls.
        return Told(parts, told if any(isinstance(part, Content) for part in parts) else [])

    def _named(self, placed: Placed) -> OutputTokenLogprob:
        found = token_logprobs(self._model, placed.entry)
        top: list[TopLogprob] = [{**one, "bytes": one["bytes"] or []} for one in found["top_logprobs"]]
        return {**found, "bytes": found["bytes"] or [], "top_logprobs": top}


def merged(told: Iterable[Told]) -> list[Told]:
    """Merge parts that continue each other, for an answer in one piece."""
    found: list[Told] = []
    for one in told:
        logprobs = one.logprobs
        for part in one.parts:
            if found and (joined := _joined(found[-1].parts[-1], part)) is not None:
                found[-1].parts[-1] = joined
            else:
                found.append(Told([part]))
            if isinstance(part, Content):
                found[-1].logprobs += logprobs
                logprobs = []
    return found


def _joined(first: Part, second: Part) -> Part | None:
    match first, second:
        case Content(), Content():
            return Content(first.text + second.text)
        case Reasoning(), Reasoning():
            return Reasoning(first.text + second.text)
        case Arguments(), Arguments() if first.index == second.index:
            return Arguments(first.index, first.text + second.text)
    return None
