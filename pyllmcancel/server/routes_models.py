"""``/v1/models``: what is served, under which names."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from pyllmcancel.server.answers import ModelEntry, ModelList
from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.state import ServerState, state_of

router = APIRouter(tags=["Models"], responses=errors(400, 503))


@router.get("/v1/models", summary="The model that is served, and its facts", responses=answers(ModelList))
@router.get("/models", include_in_schema=False)
async def list_models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [model_json(state_of(request))]}


# Names are the user's to choose, and may contain slashes.
@router.get(
    "/v1/models/{model:path}",
    summary="The model of this name",
    responses=answers(ModelEntry) | errors(404),
)
async def get_model(request: Request, model: str) -> dict[str, Any]:
    state = state_of(request)
    shown = model_json(state)
    if model not in (state.model_name, *state.aliases):
        message = f"the model {model!r} is not served here, but {state.model_name!r} is"
        raise ApiError(404, message, param="model", code="model_not_found")
    return shown


def model_json(state: ServerState) -> dict[str, Any]:
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
        },
    }
