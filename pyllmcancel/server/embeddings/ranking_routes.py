"""``/v1/rerank`` and its other paths."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter

from pyllmcancel.embeddings.pairs import TEMPLATE, gives_probabilities
from pyllmcancel.pooling import check_ranks
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.embeddings.answer import submit_texts
from pyllmcancel.server.embeddings.ranking import PairReader, RankAnswer, RankBody, RankedText, RankWording
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, asks, errors

router = APIRouter(tags=["Rankings"], responses=errors(*GENERATION_ERRORS))


@router.post(
    "/v1/rerank",
    summary="Rank documents by a query",
    description="For models that have a classification head. `documents` are Jina's form, `texts` TEI's.",
    openapi_extra=asks(RankBody),
    responses=answers(RankAnswer | list[RankedText]),
)
@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)  # Cohere's client
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
async def rerank(incoming: Annotated[Incoming[RankBody], reads(RankBody)]) -> Any:
    state, body = incoming.state, incoming.body
    model = state.engine.model
    state.check_model(body.model)
    check_ranks(state.engine.pooling)
    # Each pair has the query, and the template, in it.
    repeated = (len(body.query) + len(model.metadata.get(TEMPLATE, ""))) * len(body.ranked())
    tokens = await incoming.prepare(lambda pause: PairReader(state.texts, body, pause).read(), cost=repeated)
    squash = body.raw_scores is False and not gives_probabilities(model)
    return submit_texts(incoming, tokens, RankWording(body, state.model_name, squash=squash))
