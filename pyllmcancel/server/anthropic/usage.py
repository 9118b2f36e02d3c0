"""The tokens of a message, in Anthropic's fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


class MessageUsage(Answer):
    """Anthropic's counts of a prompt's tokens: each token is counted in one of the first three."""

    input_tokens: Annotated[
        int, Field(ge=0, description="Tokens of the prompt, without those that came from the cache.")
    ]
    cache_creation_input_tokens: Annotated[
        int, Field(ge=0, description="Always 0: keeping a prefix costs nothing here.")
    ]
    cache_read_input_tokens: Annotated[int, Field(ge=0, description="Tokens that came from the cache.")]
    output_tokens: Annotated[int, Field(ge=0)]


def message_usage(usage: Usage) -> MessageUsage:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
