"""``/v1/embeddings``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.embeddings.answer import EmbeddingAnswer, Wording, submit_texts
from pyllmcancel.server.embeddings.body import EmbeddingBody
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, asks, errors

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine

router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=errors(*GENERATION_ERRORS))


@router.post(
    "/embeddings",
    summary="Embeddings of texts",
    description="For models that pool; a model that generates answers with an error.",
    openapi_extra=asks(EmbeddingBody),
    responses=answers(EmbeddingAnswer),
)
async def embeddings(incoming: Annotated[Incoming[EmbeddingBody], reads(EmbeddingBody)]) -> Any:
    state, body = incoming.state, incoming.body
    state.check_model(body.model)
    check_dimensions(state.engine, body.dimensions)
    wording = Wording(state.model_name, body.dimensions, base64=body.encoding_format == "base64")
    return await submit_texts(incoming, wording)


def check_dimensions(engine: Engine, dimensions: int | None) -> None:
    """Check the number of dimensions. A smaller number makes sense only for a model that was trained for it, which its
    file does not say.
    """
    n_embd = engine.n_embd  # None: the model does not pool, which the engine will report
    if dimensions is None or n_embd is None or dimensions == n_embd:
        return
    if not engine.config.matryoshka:
        message = f"this model's embeddings have {n_embd:,} dimensions, and are not made to be cut (--matryoshka)"
        raise InvalidRequestError(message, "dimensions")
    if dimensions > n_embd:
        raise InvalidRequestError(f"this model's embeddings have {n_embd:,} dimensions", "dimensions")
