"""The tokens of a request, in OpenAI's fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


class PromptTokensDetails(Answer):
    cached_tokens: Annotated[int, Field(ge=0, description="Tokens that came from the cache.")]


class UsageAnswer(Answer):
    """Tokens of a request; after a cancel, those that had been processed by then."""

    prompt_tokens: Annotated[int, Field(ge=0)]
    completion_tokens: Annotated[int, Field(ge=0)]
    total_tokens: Annotated[int, Field(ge=0)]
    prompt_tokens_details: PromptTokensDetails


def usage_json(usage: Usage) -> UsageAnswer:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
