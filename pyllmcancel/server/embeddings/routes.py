"""``/v1/embeddings``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.bodies import BodyRoute
from pyllmcancel.server.embeddings.response import base64_numbers, cut, json_numbers, submit_texts
from pyllmcancel.server.embeddings.wire import EmbeddingAnswer, EmbeddingBody
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, errors
from pyllmcancel.server.state import state_of
from pyllmcancel.server.submission import session_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pyllmcancel.engine import Engine
    from pyllmcancel.request import Usage

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=BodyRoute, responses=errors(*GENERATION_ERRORS))


@router.post(
    "/embeddings",
    summary="Embeddings of texts",
    description="For models that pool; those that generate say so with an error.",
    responses=answers(EmbeddingAnswer),
)
async def embeddings(request: Request, body: EmbeddingBody) -> Any:
    state = state_of(request)
    state.check_model(body.model)
    check_dimensions(state.engine, body.dimensions)
    wording = OpenAIWording(state.model_name, body)
    return await submit_texts(request, body.texts, wording, session=session_of(request, body), deadline=body.timeout)


def check_dimensions(engine: Engine, dimensions: int | None) -> None:
    """Fewer than all make sense only to a model that was trained for it, which its file cannot say."""
    n_embd = engine.n_embd  # None: it does not pool, which the engine will say
    if dimensions is None or n_embd is None or dimensions == n_embd:
        return
    if not engine.config.matryoshka:
        message = f"this model's embeddings have {n_embd:,} dimensions, and are not made to be cut (--matryoshka)"
        raise InvalidRequestError(message, "dimensions")
    if dimensions > n_embd:
        raise InvalidRequestError(f"this model's embeddings have {n_embd:,} dimensions", "dimensions")


class OpenAIWording:
    def __init__(self, model: str, body: EmbeddingBody) -> None:
        self._model = model
        self._dimensions = body.dimensions
        self._base64 = body.encoding_format == "base64"

    def entry(self, index: int, embedding: NDArray[np.float32]) -> str:
        numbers = cut(embedding, self._dimensions)
        shown = f'"{base64_numbers(numbers)}"' if self._base64 else json_numbers(numbers)
        return f'{{"object":"embedding","index":{index},"embedding":{shown}}}'

    def whole(self, entries: list[str], usage: Usage) -> str:
        tokens = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        ends = f'"model":{json.dumps(self._model)},"usage":{json.dumps(tokens)}'
        return f'{{"object":"list","data":[{",".join(entries)}],{ends}}}'
