"""From OpenAI's fields to the engine's parameters, and from its prompts to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyllmcancel.choices import check_count, room_after
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.infill import fim_prompt
from pyllmcancel.request import GenerationParams
from pyllmcancel.server.submission import prompt_list
from pyllmcancel.server.tokens import check_tokens

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.pausing import Pause
    from pyllmcancel.sampling import SamplingParams
    from pyllmcancel.server.openai.wire import ChatBody, CompletionBody, GenerationBody
    from pyllmcancel.server.tokens import TextReader


def check_completion(body: CompletionBody) -> None:
    """Raise InvalidRequestError for fields that contradict each other."""
    check_common(body)
    n = body.n or 1
    best_of = n if body.best_of is None else body.best_of
    if best_of < n:
        raise InvalidRequestError(f"best_of is {best_of}, and cannot be less than n, which is {n}", "best_of")
    if body.stream and best_of > n:
        raise InvalidRequestError("the best can be told at the end only: best_of must be n in a stream", "best_of")
    if body.suffix and body.echo:
        raise InvalidRequestError("with a suffix the prompt is not what the answer goes on from", "echo")


def check_chat(body: ChatBody) -> None:
    """As `check_completion`."""
    check_common(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("top_logprobs needs logprobs to be true", "top_logprobs")


def check_common(body: GenerationBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options are for streams only", "stream_options")


def completion_params(
    body: CompletionBody, defaults: SamplingParams, constraint: ConstraintFactory | None
) -> GenerationParams:
    """What to generate; `defaults` for what the client leaves open."""
    n = body.n or 1
    best_of = body.best_of or n
    # To compare answers, their logprobs are wanted, whether or not the client gets to see them.
    n_logprobs = 0 if best_of > n and body.logprobs is None else body.logprobs
    return GenerationParams(
        sampling=sampling_params(body, defaults, n_logprobs),
        n=best_of,
        max_tokens=body.max_tokens,
        prompt_logprobs=body.echo and body.logprobs is not None,
        constraint=constraint,
        **common(body),
    )


def chat_params(
    body: ChatBody, defaults: SamplingParams, constraint: ConstraintFactory | None, visible: frozenset[int]
) -> GenerationParams:
    """As `completion_params`."""
    return GenerationParams(
        sampling=sampling_params(body, defaults, body.n_logprobs),
        n=body.n or 1,
        max_tokens=body.limit,
        constraint=constraint,
        visible_tokens=visible,
        **common(body),
    )


def sampling_params(body: GenerationBody, defaults: SamplingParams, n_logprobs: int | None) -> SamplingParams:
    return replace(defaults, **body.given(), grammar=body.grammar or "", n_logprobs=n_logprobs)


def common(body: GenerationBody) -> dict[str, Any]:
    return {
        "stop": body.stops(),
        "timeout": body.timeout,
        "reuse_prefix": body.cache_prompt is not False,
        "max_prompt_seconds": _seconds(body.t_max_prompt_ms),
        "max_predict_seconds": _seconds(body.t_max_predict_ms),
    }


def completion_prompts(reader: TextReader, body: CompletionBody, pause: Pause) -> list[Sequence[int]]:
    """The tokens of every prompt; editors spell special tokens in theirs, and mean them."""
    prompts = prompt_list(body.prompt)
    check_count(len(prompts), body.best_of or body.n or 1)
    if body.suffix:
        found = [_around_gap(reader, prompt, body.suffix, pause) for prompt in prompts]
    else:
        found = [reader.tokens(prompt, "prompt", pause, parse_special=True) for prompt in prompts]
    for tokens in found:
        check_tokens(tokens, reader.model.n_vocab, "prompt")
        if tokens:
            room_after(tokens, reader.n_ctx)  # before anybody spells out what has no room
    return found


def _around_gap(reader: TextReader, prompt: str | list[int], suffix: str, pause: Pause) -> Sequence[int]:
    if not isinstance(prompt, str):
        raise InvalidRequestError("a suffix needs a prompt that is text", "suffix")
    reader.check_length(len(prompt) + len(suffix), "prompt")
    pause()
    return fim_prompt(reader.model, prompt, suffix)


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1e3 if milliseconds is not None and milliseconds > 0 else None
