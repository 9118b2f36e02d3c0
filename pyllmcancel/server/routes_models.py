"""``/v1/models``: the served model under its names, in Anthropic's format if Anthropic's clients ask."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field

from pyllmcancel.server.errors.shapes import ANTHROPIC, shape_of
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.state import ServerState, state_of
from pyllmcancel.server.wire.fields import BATCH_INVARIANT, Answer

router = APIRouter(tags=["Models"], responses=errors(400, 503))


class ModelFacts(Answer):
    description: str
    n_params: int
    size: Annotated[int, Field(description="Size of all tensors, in bytes.")]
    n_ctx_train: int
    n_ctx: Annotated[int, Field(description="Limit of one request's tokens, prompt and answer together.")]
    n_embd: int
    n_vocab: int
    memory_kind: Literal["attention", "recurrent", "hybrid", "none"]
    batch_invariant: Annotated[bool, BATCH_INVARIANT]
    layers: Annotated[dict[str, int], Field(description="Number of layers on each device, the output layer included.")]


class ModelEntry(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    aliases: list[str]
    tags: list[str]
    meta: ModelFacts


class ModelAbilities(Answer):
    name: str
    model: str
    type: Literal["model"]
    capabilities: Annotated[list[str], Field(description="`multimodal` if the model takes pictures or sounds.")]


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelEntry]
    models: Annotated[list[ModelAbilities], Field(description="llama-server's list of the same.")]


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


@router.get("/v1/models", summary="The model that is served, and its facts", responses=answers(ModelList | ModelPage))
@router.get("/models", include_in_schema=False)
async def list_models(request: Request) -> Any:
    state = state_of(request)
    if shape_of(request.scope) is ANTHROPIC:
        return ModelPage(data=[model_info(state)], has_more=False, first_id=state.model_name, last_id=state.model_name)
    return ModelList(object="list", data=[model_entry(state)], models=[abilities(state)])


# Users choose the names, which may contain slashes.
@router.get("/v1/models/{model:path}", summary="One model", responses=answers(ModelEntry | ModelInfo) | errors(404))
async def get_model(request: Request, model: str) -> Any:
    state = state_of(request)
    shown = model_info(state) if shape_of(request.scope) is ANTHROPIC else model_entry(state)
    state.check_model(model, strict=True)
    return shown


def abilities(state: ServerState) -> ModelAbilities:
    does = ["completion" if state.engine.n_embd is None else "embedding"]
    if state.engine.media is not None:
        does.append("multimodal")
    return {"name": state.model_name, "model": state.model_name, "type": "model", "capabilities": does}


def model_entry(state: ServerState) -> ModelEntry:
    engine = state.engine
    model = engine.model
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "pyllmcancel",
        "aliases": list(state.aliases),
        "tags": list(state.config.tags),
        "meta": {
            "description": model.description,
            "n_params": model.n_params,
            "size": model.size,
            "n_ctx_train": model.n_ctx_train,
            "n_ctx": engine.n_ctx,
            "n_embd": model.n_embd,
            "n_vocab": model.n_vocab,
            "memory_kind": model.memory_kind,
            "batch_invariant": engine.varies_because is None,
            "layers": model.layers_by_device,
        },
    }


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
