"""The answer of ``/v1/completions``: echoes of the prompt, the best of several, logprobs by columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from pyllmcancel.server.openai.answer import FINISH, ChunkUsage, Envelope, Finish, OpenAIDialect, ReturnedTokens
from pyllmcancel.server.openai.logprobs import (
    CompletionLogprobs,
    PromptText,
    Row,
    answer_rows,
    prompt_rows,
)
from pyllmcancel.server.wire.fields import StopDetails, stop_details
from pyllmcancel.server.wire.usage import UsageAnswer

if TYPE_CHECKING:
    from pyllmcancel.events import Delta
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.openai.completion_body import CompletionBody


class Text(ReturnedTokens, StopDetails):
    index: int
    text: str
    logprobs: CompletionLogprobs | None


class CompletionChoice(Text):
    finish_reason: Finish


class CompletionChoiceChunk(Text):
    finish_reason: Finish | None


class Completion(Envelope):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageAnswer


class CompletionChunk(Envelope, ChunkUsage):
    object: Literal["text_completion"]
    choices: list[CompletionChoiceChunk]


class CompletionDialect(OpenAIDialect):
    """One request's answer to a number of prompts; with `echo` these are given, too."""

    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, incoming: Incoming[CompletionBody], n_prompts: int, prompts: Sequence[PromptText] = ()) -> None:
        body, model = incoming.body, incoming.state.engine.model
        self._n = body.n or 1
        self._best_of = body.n_generated
        piece = partial(model.piece, special=body.skip_special_tokens is False)
        super().__init__(incoming, n_prompts * self._best_of, piece)
        self._prompts = prompts
        self._begun = set[int]()  # the choices whose prompt is in the answer

    def _changes(self, delta: Delta) -> Iterable[CompletionChoiceChunk]:
        text = self._text([delta], delta.index)
        finish_reason = FINISH.get(delta.finish_reason)
        rows = text["logprobs"]
        # Nothing to send: the text is held back, or the token has none.
        if text["text"] or finish_reason is not None or (rows and rows["tokens"]) or text.get("tokens"):
            yield {**text, "finish_reason": finish_reason}

    def _silent(self, index: int) -> CompletionChoiceChunk:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": None}

    def _whole_choices(self, deltas: Sequence[list[Delta]]) -> list[CompletionChoice]:
        kept: list[list[Delta]] = []
        for first in range(0, len(deltas), self._best_of):
            kept += best(deltas[first : first + self._best_of], self._n)
        return [
            {**self._text(own, index), "finish_reason": FINISH[own[-1].finish_reason]} for index, own in enumerate(kept)
        ]

    def _text(self, deltas: Sequence[Delta], index: int) -> Text:
        """Return the text of one choice's deltas, under the `index` that the choice has in the answer."""
        text, rows = "", list[Row]()
        for delta in deltas:
            prompt = self._prompts[delta.index // self._best_of] if self._prompts else None
            if prompt is not None and delta.index not in self._begun:
                self._begun.add(delta.index)
                text += prompt.text
                if self._wants_logprobs:
                    rows += prompt_rows(self._model, prompt, delta.prompt_logprobs)
            text += delta.text
            if self._wants_logprobs:
                shift = 0 if prompt is None else len(prompt.text)
                rows += answer_rows(self._model, self._ledgers[delta.index].take(delta), shift)
        columns: CompletionLogprobs | None = None
        if self._wants_logprobs:
            columns = {
                "tokens": [row.name for row in rows],
                "token_logprobs": [row.logprob for row in rows],
                "top_logprobs": [row.top for row in rows],
                "text_offset": [row.offset for row in rows],
            }
        return {
            "index": index,
            "text": text,
            "logprobs": columns,
            **self._returned(deltas),
            **stop_details(deltas[-1]),
        }


def best(choices: Sequence[list[Delta]], n: int) -> Sequence[list[Delta]]:
    """Return the `n` choices whose tokens were likeliest on average, the best one first; all in their order, if there
    are no more.
    """
    if len(choices) == n:
        return choices
    return sorted(choices, key=mean_logprob, reverse=True)[:n]


def mean_logprob(deltas: list[Delta]) -> float:
    """Return the mean logprob of an answer's tokens.

    An answer without any token gets less than all others.
    """
    logprobs = [entry.logprob for delta in deltas for entry in delta.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
