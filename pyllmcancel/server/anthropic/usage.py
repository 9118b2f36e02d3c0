"""The cost of a message in tokens, as Anthropic words it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel.events import Usage


class MessageUsage(Answer):
    """Where Anthropic counts the tokens of a prompt: each in one of the first three."""

    input_tokens: Annotated[int, Field(ge=0, description="Of the prompt, without those that came from the cache.")]
    cache_creation_input_tokens: Annotated[int, Field(ge=0, description="0: to keep a prefix costs nothing here.")]
    cache_read_input_tokens: Annotated[int, Field(ge=0, description="Those that came from the cache.")]
    output_tokens: Annotated[int, Field(ge=0)]


def message_usage(usage: Usage) -> MessageUsage:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
