"""Fields of bodies that are known and have no effect on an answer, each with the reason why ignoring it is correct."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from pyllmcancel.server.wire.fields import Name, RequestBody, Sent
from pyllmcancel.server.wire.sampling import MAX_INT, NO_EFFECT, extra


class PromptCacheOptions(RequestBody):
    mode: Literal["implicit"] | None = None
    ttl: str | None = None


class AcceptedFields(Sent):
    metadata: Annotated[dict[str, Any] | None, AfterValidator(lambda _: None)] = Field(
        None, description=f"{NO_EFFECT} nothing is stored."
    )
    store: bool | None = Field(None, description=f"{NO_EFFECT} nothing is stored.")
    service_tier: str | None = Field(None, description=f"{NO_EFFECT} there is one tier.")
    prompt_cache_retention: Literal["in_memory", "24h"] | None = Field(
        None, description=f"{NO_EFFECT} how long a prefix is kept is up to `--cache-ram` and `--cache-disk`."
    )
    prompt_cache_options: PromptCacheOptions | None = Field(
        None, description=f"{NO_EFFECT} any cached prefix is used anyway."
    )
    n_keep: int | None = Field(None, ge=-1, le=MAX_INT, description=extra(f"{NO_EFFECT} no context is ever shifted."))
    n_discard: int | None = Field(None, ge=0, le=MAX_INT, description=extra(f"{NO_EFFECT} no context is ever shifted."))
    n_cache_reuse: int | None = Field(None, ge=0, le=MAX_INT, description=extra(f"{NO_EFFECT} cells are not moved."))
    cache_salt: Name | None = Field(
        None, description=extra(f"vLLM's. {NO_EFFECT} cached prefixes are never shared between API keys.")
    )
    request_id: Name | None = Field(None, description=extra(f"vLLM's. {NO_EFFECT} `X-Request-Id` names a request."))
    spaces_between_special_tokens: bool | None = Field(
        None, description=extra(f"vLLM's. {NO_EFFECT} the text has only the spaces that the model writes.")
    )
    include_reasoning: Literal[True] | None = Field(None, description=extra(f"{NO_EFFECT} nothing is left out."))
    keep_alive: float | str | None = Field(None, description=extra(f"Ollama's. {NO_EFFECT} the model stays loaded."))
