"""The served model as Anthropic's ``/v1/models`` lists it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel.server.state import ServerState


class ModelInfo(Answer):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: Annotated[str, Field(description="RFC 3339.")]
    lifecycle: Literal["active"]
    max_input_tokens: Annotated[int, Field(description="Limit of one request's tokens, prompt and answer together.")]
    max_tokens: Annotated[int, Field(description="Limit of an answer's tokens.")]


class ModelPage(Answer):
    """The list of models, which has one page."""

    data: list[ModelInfo]
    has_more: Literal[False]
    first_id: str
    last_id: str


def model_info(state: ServerState) -> ModelInfo:
    n_ctx = state.engine.n_ctx
    return {
        "type": "model",
        "id": state.model_name,
        "display_name": state.model_name,
        "created_at": datetime.fromtimestamp(state.created, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": n_ctx,
        "max_tokens": state.config.limited(n_ctx) or n_ctx,
    }


def model_page(state: ServerState) -> ModelPage:
    name = state.model_name
    return {"data": [model_info(state)], "has_more": False, "first_id": name, "last_id": name}
