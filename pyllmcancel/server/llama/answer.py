"""llama-server's answers, whole and in events. Its streams end with an event that has ``"stop": true``.

That event is the only mark of a complete answer, so it is not sent before the request has ended: the first of several
answers may be complete long before a cancel cuts the last one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, cast

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from pyllmcancel.events import FinishReason
from pyllmcancel.server.dialect import Dialect
from pyllmcancel.server.errors.shapes import LlamaErrorAnswer, llama_error
from pyllmcancel.server.wire.fields import ABSENT, Answer, stop_details
from pyllmcancel.server.wire.generation import chosen
from pyllmcancel.server.wire.tokens import text_of
from pyllmcancel.server.wire.usage import PromptProgress, Timings, progress, timings

if TYPE_CHECKING:
    from pyllmcancel.events import Delta, TokenLogprobs, Usage
    from pyllmcancel.requests.request import Choice
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.errors.responses import ApiError
    from pyllmcancel.server.llama.body import AnsweringBody

LOWEST = -3.4028234663852886e38  # llama-server writes this for the logarithm of 0, which JSON does not have

StopType = Literal["eos", "limit", "word"]


class TokenProbability(Answer):
    """`prob` and `top_probs` with `post_sampling_probs`, otherwise `logprob` and `top_logprobs`."""

    id: int
    token: str
    bytes: list[int]
    logprob: NotRequired[Annotated[float | None, ABSENT]]
    prob: NotRequired[Annotated[float | None, ABSENT]]
    top_logprobs: NotRequired[Annotated[list[TokenProbability] | None, ABSENT]]
    top_probs: NotRequired[Annotated[list[TokenProbability] | None, ABSENT]]


@with_config(ConfigDict(extra="allow"))
class CompletionAnswer(TypedDict, total=False):
    """The whole answer. With `response_fields` it has only those, each under its path."""

    index: Annotated[int, Field(default=0)]
    content: Annotated[str, Field(default="")]
    tokens: Annotated[list[int], Field(default=[], description="With `return_tokens`.")]
    id_slot: Annotated[int, Field(default=-1)]
    stop: Annotated[Literal[True], Field(default=True)]
    model: Annotated[str, Field(default="")]
    tokens_predicted: Annotated[int, Field(default=0)]
    tokens_evaluated: Annotated[int, Field(default=0, description="Tokens of the prompt.")]
    generation_settings: Annotated[dict[str, Any], Field(default={})]
    prompt: Annotated[str, Field(default="", description="The prompt as text, with special tokens spelled out.")]
    has_new_line: Annotated[bool, Field(default=False)]
    truncated: Annotated[bool, Field(default=False, description="True if the context is full.")]
    stop_type: Annotated[StopType, Field(default="eos")]
    stopping_word: Annotated[str, Field(default="")]
    stop_details: Annotated[Literal["repetition"] | None, ABSENT]
    tokens_cached: Annotated[
        int, Field(default=0, description="Tokens of prompt and answer that are in the cells now.")
    ]
    timings: Annotated[Timings | None, ABSENT]
    completion_probabilities: Annotated[list[TokenProbability], Field(default=[])]


class CompletionEvent(Answer):
    """One event; the last of a complete answer is a CompletionAnswer without text, whose `stop` is true."""

    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: NotRequired[Annotated[Timings | None, ABSENT]]
    prompt_progress: NotRequired[Annotated[PromptProgress | None, ABSENT]]
    completion_probabilities: NotRequired[Annotated[list[TokenProbability], Field(default=[])]]


@dataclass(slots=True)
class Said:
    """One answer so far. Its `tokens` and `logprobs` have not been sent yet."""

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


class LlamaDialect(Dialect):
    """One request's answers. `settings` makes `generation_settings`, for answers that have that field."""

    def __init__(self, incoming: Incoming[AnsweringBody], settings: Callable[[], dict[str, Any]]) -> None:
        state, body = incoming.state, incoming.body
        self._times_tokens = bool(body.timings_per_token)
        self._returns_tokens = bool(body.return_tokens)
        self._after_sampling = bool(body.post_sampling_probs)
        self._fields = body.response_fields or ()
        self._model = state.engine.model
        self._n_ctx = state.n_ctx
        self._model_name = state.model_name
        self._settings = settings
        self._request = incoming.request
        self._said: defaultdict[int, Said] = defaultdict(Said)  # by the number of the choice

    # -- events -------------------------------------------------------------------------------------------------------

    def chunks(self, delta: Delta) -> Iterable[CompletionEvent]:
        choice, said = self._request.choices[delta.index], self._said[delta.index]
        if delta.prompt_done is not None:
            yield {
                **self._event(choice, said, "", delta.prompt_done),
                "prompt_progress": progress(choice, delta.prompt_done, delta.is_encoding),
            }
            return
        said.take(delta)
        # A token whose text is held back is sent with the text that completes it.
        if delta.text:
            yield self._event(choice, said, delta.text, len(choice.prompt))

    def closing(self, usage: Usage) -> Iterable[CompletionAnswer]:
        for choice in self._request.choices:
            yield self._final(choice, "", [], [])

    def failure(self, error: ApiError, request_id: str) -> Iterable[LlamaErrorAnswer]:
        yield llama_error(error, request_id)

    def _event(self, choice: Choice, said: Said, text: str, prompt_done: int) -> CompletionEvent:
        tokens, logprobs = said.hand_out()
        event: CompletionEvent = {
            "index": choice.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": slot_of(choice),
            "tokens_predicted": said.n_tokens,
            "tokens_evaluated": len(choice.prompt),
        }
        if self._times_tokens:
            event["timings"] = timings(choice, prompt_done, said.n_tokens)
        if logprobs:
            event["completion_probabilities"] = [self._probabilities(entry) for entry in logprobs]
        return event

    # -- whole --------------------------------------------------------------------------------------------------------

    def whole(self, deltas: list[Delta], usage: Usage) -> CompletionAnswer | list[CompletionAnswer]:
        """Return a single answer by itself, or several in a list."""
        texts: defaultdict[int, list[str]] = defaultdict(list)
        for delta in deltas:
            self._said[delta.index].take(delta)
            texts[delta.index].append(delta.text)
        answers = []
        for choice in self._request.choices:
            tokens, logprobs = self._said[choice.index].hand_out()
            shown = tokens if self._returns_tokens else []
            answers.append(self._final(choice, "".join(texts[choice.index]), shown, logprobs))
        return answers[0] if len(answers) == 1 else answers

    def _final(self, choice: Choice, text: str, tokens: list[int], logprobs: list[TokenLogprobs]) -> CompletionAnswer:
        said = self._said[choice.index]
        assert said.last is not None
        n_generated = len(choice.generated)
        whole: CompletionAnswer = {
            "index": choice.index,
            "content": text,
            "tokens": tokens,
            "id_slot": slot_of(choice),
            "stop": True,
            "model": self._model_name,
            "tokens_predicted": n_generated,
            "tokens_evaluated": len(choice.prompt),
        }
        # These fields are long, and so are made only for answers that have them.
        if self._has("generation_settings"):
            whole["generation_settings"] = self._settings()
        if self._has("prompt"):
            whole["prompt"] = text_of(self._model, choice.prompt)
        whole |= {
            "has_new_line": said.has_line_feed,
            "truncated": len(choice.prompt) + n_generated >= self._n_ctx,
            "stop_type": stop_type(said.last),
            "stopping_word": said.last.stop_text or "",
            "tokens_cached": choice.n_committed,
            "timings": timings(choice, min(choice.n_committed, len(choice.prompt)), n_generated),
        }
        whole |= cast("CompletionAnswer", stop_details(said.last))
        if logprobs:
            whole["completion_probabilities"] = [self._probabilities(entry) for entry in logprobs]
        return cast("CompletionAnswer", chosen(whole, self._fields)) if self._fields else whole

    def _has(self, name: str) -> bool:
        return not self._fields or any(path.split("/")[0] == name for path in self._fields)

    # -- probabilities ------------------------------------------------------------------------------------------------

    def _probabilities(self, entry: TokenLogprobs) -> TokenProbability:
        top = [self._probability(token, logprob) for token, logprob in entry.top.tolist() if logprob > -math.inf]
        own = self._probability(entry.token, entry.logprob)
        return {**own, "top_probs": top} if self._after_sampling else {**own, "top_logprobs": top}

    def _probability(self, token: int, logprob: float) -> TokenProbability:
        piece = self._model.piece(token)
        shown: TokenProbability = {"id": token, "token": piece.decode("utf-8", "ignore"), "bytes": list(piece)}
        if self._after_sampling:
            shown["prob"] = math.exp(logprob)
        else:
            shown["logprob"] = max(logprob, LOWEST)
        return shown


def slot_of(choice: Choice) -> int:
    return -1 if choice.slot is None else choice.slot


def stop_type(last: Delta) -> StopType:
    if last.finish_reason is FinishReason.LENGTH:
        return "limit"
    return "eos" if last.stop_text is None else "word"
