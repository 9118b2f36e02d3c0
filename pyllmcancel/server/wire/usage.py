"""The tokens of a request in OpenAI's fields; llama-server's timings of an answer, and the progress of its prompt."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, NotRequired

from pydantic import Field

from pyllmcancel.drafting.sources import PREDICTION
from pyllmcancel.server.wire.fields import Answer, absent

if TYPE_CHECKING:
    from pyllmcancel.events import Usage
    from pyllmcancel.requests.request import Choice


class PromptTokensDetails(Answer):
    cached_tokens: Annotated[int, Field(ge=0, description="Tokens that came from the cache.")]


class CompletionTokensDetails(Answer):
    accepted_prediction_tokens: Annotated[
        int, Field(ge=0, description="Tokens that were drafted from `prediction`, and are part of the answer.")
    ]
    rejected_prediction_tokens: Annotated[
        int, Field(ge=0, description="Tokens that were drafted from `prediction`, computed, and dropped.")
    ]


class UsageAnswer(Answer):
    """Tokens of a request; after a cancel, those that had been processed by then."""

    prompt_tokens: Annotated[int, Field(ge=0)]
    completion_tokens: Annotated[int, Field(ge=0)]
    total_tokens: Annotated[int, Field(ge=0)]
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[
        Annotated[CompletionTokensDetails | None, absent("If the request has a `prediction`.")]
    ]


def usage_json(usage: Usage) -> UsageAnswer:
    shown: UsageAnswer = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    for source, n_drafted, n_accepted in usage.drafts:
        if source == PREDICTION:
            shown["completion_tokens_details"] = {
                "accepted_prediction_tokens": n_accepted,
                "rejected_prediction_tokens": n_drafted - n_accepted,
            }
    return shown


class Timings(Answer):
    """Milliseconds and tokens; the first token comes with the prompt's last, so rates do not count it."""

    cache_n: Annotated[int, Field(description="Tokens of the prompt that came from the cache.")]
    prompt_n: Annotated[int, Field(description="Tokens of the prompt that were computed.")]
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[Annotated[int | None, absent("Tokens that were drafted, if any were.")]]
    draft_n_accepted: NotRequired[Annotated[int | None, absent("Those of them that are part of the answer.")]]


class PromptProgress(Answer):
    total: int
    cache: int
    processed: Annotated[int, Field(description="Tokens from the cache, which are included.")]
    time_ms: int
    encoding: NotRequired[
        Annotated[bool, Field(default=False, description="True until the prompt's pictures and sounds are encoded.")]
    ]


def progress(choice: Choice, done: int, is_encoding: bool) -> PromptProgress:
    """Return the progress of a prompt; `processed` includes tokens from the cache."""
    began = choice.admitted_at
    shown: PromptProgress = {
        "total": len(choice.prompt),
        "cache": choice.n_cached,
        "processed": done,
        "time_ms": 0 if began is None else round((time.monotonic() - began) * 1e3),
    }
    return {**shown, "encoding": True} if is_encoding else shown


def timings(choice: Choice, prompt_done: int, n_predicted: int) -> Timings:
    """Return llama-server's timings of one answer. The first token comes with the prompt's last step, so rates do not
    count it. As in llama-server, an answer without drafts has no counts of drafts.
    """
    n_prompt = max(0, prompt_done - choice.n_cached)
    prompt_end = choice.first_token_at or choice.request.ended_at or time.monotonic()
    prompt_ms = (prompt_end - choice.admitted_at) * 1e3 if choice.admitted_at is not None and n_prompt else 0.0
    first, last = choice.first_token_at, choice.last_token_at
    predicted_ms = (last - first) * 1e3 if first is not None and last is not None and n_predicted else 0.0
    prompt_rates, predicted_rates = rates(n_prompt, prompt_ms), rates(n_predicted - 1, predicted_ms)
    shown: Timings = {
        "cache_n": choice.n_cached,
        "prompt_n": n_prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_rates[0],
        "prompt_per_second": prompt_rates[1],
        "predicted_n": n_predicted,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_rates[0],
        "predicted_per_second": predicted_rates[1],
    }
    drafted = list(choice.drafted())
    n_drafted = sum(one.n_drafted for one in drafted)
    if n_drafted:
        shown["draft_n"] = n_drafted
        shown["draft_n_accepted"] = sum(one.n_accepted for one in drafted)
    return shown


def rates(n_steps: int, milliseconds: float) -> tuple[float, float]:
    """Return milliseconds per step, and steps per second."""
    return (milliseconds / n_steps, 1e3 * n_steps / milliseconds) if n_steps > 0 and milliseconds > 0.0 else (0.0, 0.0)
