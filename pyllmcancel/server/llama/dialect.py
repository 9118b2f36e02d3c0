"""How llama-server words an answer: whole, and in events. Its streams end with an event that says ``"stop": true``.

That event is the only mark of a complete answer, so it is not sent before the request has ended: of several answers the
first may be long finished when a cancel cuts the last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyllmcancel.request import FinishReason
from pyllmcancel.server.llama.params import text_of

if TYPE_CHECKING:
    from pyllmcancel.engine import Engine
    from pyllmcancel.request import Choice, Delta, Request, TokenLogprobs, Usage
    from pyllmcancel.server.llama.wire import AnsweringBody

LOWEST = -3.4028234663852886e38  # what llama-server writes for the logarithm of 0, which JSON does not have


@dataclass(slots=True)
class Said:
    """What one answer has come to; `tokens` and `logprobs` are those that no event has told of."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    n_tokens: int = 0
    has_line_feed: bool = False
    last: Delta | None = None

    def take(self, delta: Delta) -> None:
        self.tokens += delta.tokens
        self.logprobs += delta.logprobs
        self.n_tokens += len(delta.tokens)
        self.has_line_feed = self.has_line_feed or "\n" in delta.text
        self.last = delta

    def hand_out(self) -> tuple[list[int], list[TokenLogprobs]]:
        tokens, logprobs = self.tokens, self.logprobs
        self.tokens, self.logprobs = [], []
        return tokens, logprobs


class LlamaDialect:
    """One request's answers.

    Parameters
    ----------
    settings
        Makes `generation_settings`, for answers that have that field.
    """

    says_done = False

    def __init__(
        self, body: AnsweringBody, engine: Engine, model_name: str, settings: Callable[[], dict[str, Any]]
    ) -> None:
        self._body = body
        self._model = engine.model
        self._n_ctx = engine.n_ctx
        self._model_name = model_name
        self._settings = settings
        self._choices: list[Choice] = []
        self._said: list[Said] = []

    def follow(self, request: Request) -> None:
        """Answer for this request, whose counts and clocks are looked at from here on."""
        self._choices = request.choices
        self._said = [Said() for _ in request.choices]

    # -- events -------------------------------------------------------------------------------------------------------

    def opening(self) -> Iterable[dict[str, Any]]:
        return ()

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        choice, said = self._choices[delta.index], self._said[delta.index]
        if delta.prompt_done is not None:
            yield self._event(choice, said, "", delta.prompt_done) | {"prompt_progress": progress(choice, delta)}
            return
        said.take(delta)
        # A token whose text is held back goes out with the text that settles it.
        if delta.text:
            yield self._event(choice, said, delta.text, len(choice.prompt))

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        for choice, said in zip(self._choices, self._said, strict=True):
            yield self._final(choice, said, "", [])

    def _event(self, choice: Choice, said: Said, text: str, prompt_done: int) -> dict[str, Any]:
        tokens, logprobs = said.hand_out()
        event: dict[str, Any] = {
            "index": choice.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": slot_of(choice),
            "tokens_predicted": said.n_tokens,
            "tokens_evaluated": len(choice.prompt),
        }
        if self._body.timings_per_token:
            event["timings"] = timings(choice, prompt_done, said.n_tokens)
        if logprobs:
            event["completion_probabilities"] = [self._probabilities(entry) for entry in logprobs]
        return event

    # -- whole --------------------------------------------------------------------------------------------------------

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any] | list[dict[str, Any]]:
        """One answer by itself, several in a list."""
        texts: list[list[str]] = [[] for _ in self._choices]
        for delta in deltas:
            self._said[delta.index].take(delta)
            texts[delta.index].append(delta.text)
        answers = []
        for choice, said, parts in zip(self._choices, self._said, texts, strict=True):
            tokens, logprobs = said.hand_out()
            more: dict[str, Any] = {}
            if logprobs:
                more["completion_probabilities"] = [self._probabilities(entry) for entry in logprobs]
            answers.append(self._final(choice, said, "".join(parts), tokens if self._body.return_tokens else [], more))
        return answers[0] if len(answers) == 1 else answers

    def _final(
        self, choice: Choice, said: Said, text: str, tokens: list[int], more: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        assert said.last is not None
        n_generated = len(choice.generated)
        late: dict[str, Callable[[], Any]] = {
            "generation_settings": self._settings,
            "prompt": lambda: text_of(self._model, choice.prompt),
        }
        whole: dict[str, Any] = {
            "index": choice.index,
            "content": text,
            "tokens": tokens,
            "id_slot": slot_of(choice),
            "stop": True,
            "model": self._model_name,
            "tokens_predicted": n_generated,
            "tokens_evaluated": len(choice.prompt),
            **{name: make() for name, make in late.items() if self._has(name)},
            "has_new_line": said.has_line_feed,
            "truncated": len(choice.prompt) + n_generated >= self._n_ctx,
            "stop_type": stop_type(said.last),
            "stopping_word": said.last.stop_text or "",
            "tokens_cached": choice.n_committed,
            "timings": timings(choice, min(choice.n_committed, len(choice.prompt)), n_generated),
        }
        whole |= more or {}
        fields = self._body.response_fields
        return whole if not fields else chosen(whole, fields)

    def _has(self, name: str) -> bool:
        fields = self._body.response_fields
        return not fields or any(path.split("/")[0] == name for path in fields)

    # -- probabilities ------------------------------------------------------------------------------------------------

    def _probabilities(self, entry: TokenLogprobs) -> dict[str, Any]:
        top = [self._probability(token, logprob) for token, logprob in entry.top.tolist() if logprob > -math.inf]
        name = "top_probs" if self._body.post_sampling_probs else "top_logprobs"
        return self._probability(entry.token, entry.logprob) | {name: top}

    def _probability(self, token: int, logprob: float) -> dict[str, Any]:
        piece = self._model.piece(token)
        named = {"id": token, "token": piece.decode("utf-8", "ignore"), "bytes": list(piece)}
        if self._body.post_sampling_probs:
            return named | {"prob": math.exp(logprob)}
        return named | {"logprob": max(logprob, LOWEST)}


def slot_of(choice: Choice) -> int:
    return -1 if choice.slot is None else choice.slot


def stop_type(last: Delta) -> str:
    if last.finish_reason is FinishReason.LENGTH:
        return "limit"
    return "eos" if last.stop_text is None else "word"


def progress(choice: Choice, delta: Delta) -> dict[str, Any]:
    """How far a prompt is; `processed` counts what came from the cache too."""
    began = choice.admitted_at
    return {
        "total": len(choice.prompt),
        "cache": choice.n_cached,
        "processed": delta.prompt_done,
        "time_ms": 0 if began is None else round((time.monotonic() - began) * 1e3),
    }


def timings(choice: Choice, prompt_done: int, n_predicted: int) -> dict[str, Any]:
    """llama-server's, of one answer. Rates count steps: the first token comes with the prompt's last."""
    n_prompt = max(0, prompt_done - choice.n_cached)
    prompt_end = choice.first_token_at or choice.request.ended_at or time.monotonic()
    prompt_ms = (prompt_end - choice.admitted_at) * 1e3 if choice.admitted_at is not None and n_prompt else 0.0
    first, last = choice.first_token_at, choice.last_token_at
    predicted_ms = (last - first) * 1e3 if first is not None and last is not None and n_predicted else 0.0
    return {
        "cache_n": choice.n_cached,
        **_rates("prompt", n_prompt, prompt_ms, n_prompt),
        **_rates("predicted", n_predicted, predicted_ms, n_predicted - 1),
    }


def _rates(name: str, n_tokens: int, milliseconds: float, n_steps: int) -> dict[str, Any]:
    measured = n_steps > 0 and milliseconds > 0.0
    return {
        f"{name}_n": n_tokens,
        f"{name}_ms": milliseconds,
        f"{name}_per_token_ms": milliseconds / n_steps if measured else 0.0,
        f"{name}_per_second": 1e3 * n_steps / milliseconds if measured else 0.0,
    }


def chosen(whole: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """What `response_fields` names, each under its path; what is not there is left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            found[path] = value
    return found
