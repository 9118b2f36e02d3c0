"""The tokens of a request, in OpenAI's fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NotRequired

from pydantic import Field

from pyllmcancel.drafting.sources import PREDICTION
from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


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
        Annotated[CompletionTokensDetails | None, Field(default=None, description="If the request has a `prediction`.")]
    ]


def usage_json(usage: Usage) -> UsageAnswer:
    told: UsageAnswer = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    for source, n_drafted, n_accepted in usage.drafts:
        if source == PREDICTION:
            told["completion_tokens_details"] = {
                "accepted_prediction_tokens": n_accepted,
                "rejected_prediction_tokens": n_drafted - n_accepted,
            }
    return told
