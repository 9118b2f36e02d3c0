"""The answer of ``/v1/completions``: echoes of the prompt, the best of several, logprobs by columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, NotRequired

from pyllmcancel.server.chat.logprobs import Ledger
from pyllmcancel.server.openai.answer import FINISH, ChunkUsage, Envelope, Finish, by_choice, chunk_usage
from pyllmcancel.server.openai.logprobs import CompletionLogprobs, LegacyLogprobs, PromptText, Row, legacy_shape
from pyllmcancel.server.wire.fields import ABSENT, StopDetails, stop_details
from pyllmcancel.server.wire.usage import UsageAnswer, usage_json

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.server.openai.completion_body import CompletionBody


class Text(StopDetails):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    tokens: NotRequired[Annotated[list[int] | None, ABSENT]]


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


class CompletionDialect:
    """One request's answer.

    Parameters
    ----------
    prompts
        One for each prompt, with `echo`.
    n_prompts
        The number of prompts, even without `echo`.
    """

    def __init__(
        self, envelope: Envelope, model: Model, body: CompletionBody, n_prompts: int, prompts: Sequence[PromptText] = ()
    ) -> None:
        self._envelope = envelope
        self._include_usage = body.includes_usage
        self._usage = chunk_usage(body)
        self._n = body.n or 1
        self._best_of = body.n_generated
        self._returns_tokens = bool(body.return_tokens)
        self._prompts = prompts
        self._wants_logprobs = body.most_logprobs is not None
        self._legacy = LegacyLogprobs(model)
        piece = partial(model.piece, special=body.skip_special_tokens is False)
        self._ledgers = [Ledger(piece) for _ in range(n_prompts * self._best_of)]
        self._begun = [False] * len(self._ledgers)

    def opening(self) -> Iterable[CompletionChunk]:
        return ()

    def chunks(self, delta: Delta) -> Iterable[CompletionChunk]:
        text = self._text([delta], delta.index)
        finish_reason = FINISH.get(delta.finish_reason)
        rows = text["logprobs"]
        # Nothing to send: the text is held back, or the token has none.
        if text["text"] or finish_reason is not None or (rows and rows["tokens"]) or text.get("tokens"):
            yield self._chunk([{**text, "finish_reason": finish_reason, **stop_details(delta)}])

    def silent(self, index: int) -> CompletionChunk:
        return self._chunk([{"index": index, "text": "", "logprobs": None, "finish_reason": None}])

    def closing(self, usage: Usage) -> Iterable[CompletionChunk]:
        if self._include_usage:
            yield {**self._chunk([]), "usage": usage_json(usage)}

    def whole(self, deltas: list[Delta], usage: Usage) -> Completion:
        of_choices = by_choice(deltas, len(self._ledgers))
        chosen: list[list[Delta]] = []
        for first in range(0, len(of_choices), self._best_of):
            chosen += best(of_choices[first : first + self._best_of], self._n)
        choices: list[CompletionChoice] = [
            {**self._text(own, index), "finish_reason": FINISH[own[-1].finish_reason], **stop_details(own[-1])}
            for index, own in enumerate(chosen)
        ]
        return {**self._envelope, "object": "text_completion", "choices": choices, "usage": usage_json(usage)}

    def _chunk(self, choices: list[CompletionChoiceChunk]) -> CompletionChunk:
        return {**self._envelope, "object": "text_completion", "choices": choices, **self._usage}

    def _text(self, deltas: Sequence[Delta], index: int) -> Text:
        """Return the text of one choice's deltas, under the `index` that the choice has in the answer."""
        text = ""
        rows: list[Row] = []
        for delta in deltas:
            echo = self._echo(delta, rows)
            text += echo + delta.text
            rows += self._rows(delta)
        told: Text = {"index": index, "text": text, "logprobs": legacy_shape(rows) if self._wants_logprobs else None}
        if self._returns_tokens:
            told["tokens"] = [token for delta in deltas for token in delta.tokens]
        return told

    def _echo(self, delta: Delta, rows: list[Row]) -> str:
        """Return the prompt, before a choice's first delta."""
        if self._begun[delta.index] or not self._prompts:
            return ""
        self._begun[delta.index] = True
        prompt = self._prompts[delta.index // self._best_of]
        if self._wants_logprobs:
            rows += self._legacy.prompt(prompt, delta.prompt_logprobs)
        return prompt.text

    def _rows(self, delta: Delta) -> list[Row]:
        if not self._wants_logprobs:
            return []
        shift = len(self._prompts[delta.index // self._best_of].text) if self._prompts else 0
        return self._legacy.answer(self._ledgers[delta.index].take(delta), shift)


def best(choices: list[list[Delta]], n: int) -> list[list[Delta]]:
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
