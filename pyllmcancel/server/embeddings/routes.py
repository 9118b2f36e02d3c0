"""``/v1/embeddings``, llama-server's ``/embeddings``, and ``/v1/rerank`` with its other paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter

from pyllmcancel.embeddings.pairs import TEMPLATE, gives_probabilities
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.pooling import Pooling, check_embeds, check_ranks
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.embeddings.answer import (
    EmbeddingAnswer,
    LlamaEmbeddingEntry,
    LlamaWording,
    OpenAIWording,
    embed,
    submit_texts,
)
from pyllmcancel.server.embeddings.body import EmbeddingBody, LlamaEmbeddingBody
from pyllmcancel.server.embeddings.ranking import PairReader, RankAnswer, RankBody, RankedText, RankWording
from pyllmcancel.server.openapi.description import answers

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine

router = APIRouter()


@router.post(
    "/v1/embeddings",
    tags=["OpenAI"],
    summary="Embeddings of texts",
    description="For models that pool; a model that generates answers with an error.",
    responses=answers(EmbeddingAnswer),
)
async def embeddings(incoming: Annotated[Incoming[EmbeddingBody], reads(EmbeddingBody)]) -> Any:
    state, body = incoming.state, incoming.body
    check_embeds(state.engine.pooling)
    check_dimensions(state.engine, body.dimensions)
    wording = OpenAIWording(state.model_name, body.dimensions, base64=body.encoding_format == "base64")
    return await embed(incoming, wording)


@router.post(
    "/embeddings",
    tags=["llama-server"],
    summary="Embeddings of texts, or of their tokens, in llama-server's format",
    responses=answers(list[LlamaEmbeddingEntry]),
)
@router.post("/embedding", include_in_schema=False)
async def llama_embeddings(incoming: Annotated[Incoming[LlamaEmbeddingBody], reads(LlamaEmbeddingBody)]) -> Any:
    pooling = incoming.state.engine.pooling
    check_embeds(pooling, tokens=pooling is Pooling.NONE)
    return await embed(incoming, LlamaWording())


def check_dimensions(engine: Engine, dimensions: int | None) -> None:
    """Check the number of dimensions. A smaller number makes sense only for a model that was trained for it, which its
    file does not say.
    """
    n_embd = engine.n_embd
    assert n_embd is not None
    if dimensions is None or dimensions == n_embd:
        return
    if not engine.config.matryoshka:
        message = f"this model's embeddings have {n_embd:,} dimensions, and are not made to be cut (--matryoshka)"
        raise InvalidRequestError(message, "dimensions")
    if dimensions > n_embd:
        raise InvalidRequestError(f"this model's embeddings have {n_embd:,} dimensions", "dimensions")


@router.post(
    "/v1/rerank",
    tags=["Rankings"],
    summary="Rank documents by a query",
    description="For models that have a classification head. `documents` are Jina's form, `texts` TEI's.",
    responses=answers(RankAnswer | list[RankedText]),
)
@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)  # Cohere's client
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
async def rerank(incoming: Annotated[Incoming[RankBody], reads(RankBody)]) -> Any:
    state, body = incoming.state, incoming.body
    model = state.engine.model
    check_ranks(state.engine.pooling)
    # Each pair has the query, and the template, in it.
    repeated = (len(body.query) + len(model.metadata.get(TEMPLATE, ""))) * len(body.ranked())
    tokens = await incoming.prepare(lambda pause: PairReader(state.texts, body, pause).read(), cost=repeated)
    squash = body.raw_scores is False and not gives_probabilities(model)
    return submit_texts(incoming, tokens, RankWording(body, state.model_name, squash=squash))
