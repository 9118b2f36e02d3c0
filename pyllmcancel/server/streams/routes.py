"""``/v1/stream``: answers that can be taken up again. The conversation's name is in the path, or in the query."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import Field

from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.limits import MAX_CANCELS, MAX_NAME
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.state import state_of
from pyllmcancel.server.streams.kept import KeptAnswer
from pyllmcancel.server.streams.reading import KeptResponse, offset_lost
from pyllmcancel.server.wire.fields import Answer, RequestBody

router = APIRouter(prefix="/v1", tags=["Streams"], responses=errors(400, 404, 503))

SEPARATOR = "::"  # between a conversation's name and a model's, in names that llama-server's page makes

# Names are path parameters to the router: they may contain slashes.
PathName = Annotated[str, Path(max_length=MAX_NAME, description="The conversation's name, or the request's id.")]
QueryName = Annotated[str, Query(max_length=MAX_NAME, description="As in the path.")]
From = Annotated[int, Query(alias="from", ge=0, description="Bytes of the stream to leave out.")]
ConversationId = Annotated[str, Field(max_length=MAX_NAME)]


class LookupBody(RequestBody):
    """The conversations whose streams are looked up."""

    conversation_ids: list[ConversationId] = Field(
        max_length=MAX_CANCELS,
        fail_fast=True,
        description="Names of conversations. A name also stands for those that have `::` and more behind it.",
        examples=[["conversation-1"]],
    )


class StreamEntry(Answer):
    """A stream that can be read, in llama-server's words."""

    conversation_id: Annotated[str, Field(description="The conversation's name, or the request's id.")]
    request_id: str
    is_done: bool
    readers: Annotated[int, Field(description="The clients that read it now.")]
    total_bytes: Annotated[int, Field(description="Bytes of the whole stream so far.")]
    dropped_bytes: Annotated[int, Field(description="The first bytes of the stream that are not kept any more.")]
    started_at: Annotated[int, Field(description="Seconds since the epoch.")]
    completed_at: Annotated[int, Field(description="Likewise; 0 until its end.")]


def stream_entry(kept: KeptAnswer) -> StreamEntry:
    return {
        "conversation_id": kept.name,
        "request_id": kept.request.id,
        "is_done": kept.log.ended,
        "readers": kept.n_readers,
        "total_bytes": kept.log.end,
        "dropped_bytes": kept.log.begin,
        "started_at": int(kept.started),
        "completed_at": int(kept.completed),
    }


STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The stream, as its request's client got it",
        "content": {
            "text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": {"type": "string"}}}}
        },
    }
}


@router.get("/stream", summary="As by GET /v1/stream/{stream_id}", response_class=Response, responses=STREAM)
async def get_stream_by_query(request: Request, conv_id: QueryName, start: From = 0) -> Response:
    return await get_stream(request, conv_id, start)


@router.get(
    "/stream/{stream_id:path}",
    summary="Read an answer again, and follow it to its end",
    response_class=Response,
    responses=STREAM,
)
async def get_stream(request: Request, stream_id: PathName, start: From = 0) -> Response:
    state, owner = state_of(request), exchange_of(request.scope).owner
    kept = state.streams.find(owner, stream_id)
    if kept is None and state.preparing(owner, stream_id):
        raise not_ready()
    if kept is None:
        message = "there is no stream of this name: it never was, has been deleted, or has been kept long enough"
        raise ApiError(404, message, code="stream_not_found")
    log = kept.log
    if start < log.begin:
        raise offset_lost(log)
    if start > log.end:
        raise ApiError(400, f"the stream has {log.end:,} bytes so far", param="from", code="invalid_request")
    return KeptResponse(kept, start)


@router.delete("/stream", summary="As by DELETE /v1/stream/{stream_id}", status_code=204, response_class=Response)
async def delete_stream_by_query(request: Request, conv_id: QueryName) -> Response:
    return await delete_stream(request, conv_id)


@router.delete(
    "/stream/{stream_id:path}",
    summary="Cancel an answer that can be taken up again, and forget it",
    status_code=204,
    response_class=Response,
)
async def delete_stream(request: Request, stream_id: PathName) -> Response:
    """As in llama-server the answer is the same if there is no such stream."""
    state, owner = state_of(request), exchange_of(request.scope).owner
    for request_of_stream in state.preparing(owner, stream_id):
        state.engine.cancel(request_of_stream)
    kept = state.streams.find(owner, stream_id)
    if kept is not None:
        await state.streams.delete(kept)
    return Response(status_code=204)


@router.post(
    "/streams/lookup",
    summary="The streams of some conversations, as far as they can be read",
    responses=answers(list[StreamEntry]),
)
async def look_up(incoming: Annotated[Incoming[LookupBody], reads(LookupBody)]) -> Any:
    owner = incoming.exchange.owner
    own = [kept for kept in incoming.state.streams if kept.owner == owner]
    asked = set(incoming.body.conversation_ids)
    return [stream_entry(kept) for kept in own if kept.name in asked or kept.name.split(SEPARATOR)[0] in asked]


def not_ready() -> ApiError:
    return ApiError(503, "the request is being prepared, and its stream begins soon", "server_error", code="preparing")
