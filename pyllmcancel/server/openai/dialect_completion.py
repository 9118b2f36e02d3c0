"""How ``/v1/completions`` words an answer: echoes of the prompt, the best of several, logprobs by columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from pyllmcancel.server.openai.dialect import OpenAIDialect, Sender
from pyllmcancel.server.openai.logprobs import LegacyLogprobs, PromptText, legacy_shape

if TYPE_CHECKING:
    from pyllmcancel.request import Delta
    from pyllmcancel.server.openai.wire import CompletionBody


class CompletionDialect(OpenAIDialect):
    """One request's answer.

    Parameters
    ----------
    prompts
        With `echo`: one for each prompt.
    n_prompts
        How many there are, in any case.
    """

    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(
        self,
        sender: Sender,
        body: CompletionBody,
        n_prompts: int,
        prompts: Sequence[PromptText] = (),
    ) -> None:
        self._n = body.n or 1
        self._best_of = body.best_of or self._n
        n_choices = n_prompts * self._best_of
        super().__init__(sender, n_choices, sender.model.piece, include_usage=body.includes_usage)
        self._prompts = prompts
        self._wants_logprobs = body.logprobs is not None
        self._legacy = LegacyLogprobs(sender.model)
        self._begun = [False] * n_choices

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        choice = self._choice([delta], delta.index)
        # Nothing to say: text is held back, or the token has none.
        if choice["text"] or choice["finish_reason"] is not None or choice["logprobs"] is not None:
            yield self._chunk(choice)

    def _whole_choices(self, by_choice: list[list[Delta]]) -> list[dict[str, Any]]:
        choices = []
        for first in range(0, len(by_choice), self._best_of):
            of_prompt = by_choice[first : first + self._best_of]
            choices += [self._choice(deltas, deltas[0].index) for deltas in best(of_prompt, self._n)]
        return [choice | {"index": index} for index, choice in enumerate(choices)]

    def _choice(self, deltas: Sequence[Delta], index: int) -> dict[str, Any]:
        text = ""
        rows: list[tuple[Any, ...]] = []
        for delta in deltas:
            echo = self._echo(delta, rows)
            text += echo + delta.text
            rows += self._rows(delta)
        return {
            "index": index,
            "text": text,
            "logprobs": legacy_shape(rows),
            "finish_reason": deltas[-1].finish_reason,
        }

    def _echo(self, delta: Delta, rows: list[tuple[Any, ...]]) -> str:
        """The prompt, before a choice's first delta."""
        if self._begun[delta.index] or not self._prompts:
            return ""
        self._begun[delta.index] = True
        prompt = self._prompts[delta.index // self._best_of]
        if self._wants_logprobs:
            rows += self._legacy.prompt(prompt, delta.prompt_logprobs)
        return prompt.text

    def _rows(self, delta: Delta) -> list[tuple[Any, ...]]:
        if not self._wants_logprobs:
            return []
        placed = self._ledgers[delta.index].take(
            delta.text,
            delta.logprobs,
            final=delta.finish_reason is not None,
            stopped=delta.stop_text is not None,
        )
        shift = len(self._prompts[delta.index // self._best_of].text) if self._prompts else 0
        return self._legacy.answer(placed, shift)


def best(choices: list[list[Delta]], n: int) -> list[list[Delta]]:
    """The `n` whose tokens were likeliest on average, the best one first; all as they are, if there are no more."""
    if len(choices) == n:
        return choices
    return sorted(choices, key=mean_logprob, reverse=True)[:n]


def mean_logprob(deltas: list[Delta]) -> float:
    """Of an answer without any token, less than of all others: it says nothing."""
    logprobs = [entry.logprob for delta in deltas for entry in delta.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
