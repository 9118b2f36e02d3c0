"""``/v1/responses/{id}``: responses that were created before."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from pyllmcancel.server.answer_events import SSE_HEADERS
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.responses.answer import DeletedResponse, InputItemList, ResponseAnswer, ResponseEvent
from pyllmcancel.server.responses.body import check_include
from pyllmcancel.server.responses.stored import events_from, responses_of
from pyllmcancel.server.state import state_of
from pyllmcancel.server.streams.reading import KeptResponse

router = APIRouter(tags=["OpenAI"], responses=errors(400, 404))

MAX_LISTED = 100
ITEMS = "/input_items"
Include = Annotated[list[str], Query(max_length=32)]


# Ids are path parameters to the router: they are made of the request's id, and may contain slashes.
@router.get(
    "/v1/responses/{response_id:path}/input_items",
    summary="The input of a response, including earlier responses of its conversation",
    responses=answers(InputItemList),
)
@router.get("/responses/{response_id:path}/input_items", include_in_schema=False)
async def list_input_items(
    request: Request,
    response_id: str,
    *,
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
    include: Include = [],  # noqa: B006 - FastAPI makes each request its own
    stream: Annotated[bool, Query(include_in_schema=False)] = False,
    starting_after: Annotated[int, Query(ge=-1, include_in_schema=False)] = -1,
) -> Any:
    if ends_an_id(request, ITEMS):
        whole_id = response_id + ITEMS
        return await get_response(request, whole_id, stream=stream, starting_after=starting_after, include=include)
    check_include(include)
    items = await responses_of(request).conversation(exchange_of(request.scope).owner, response_id, output=False)
    if order == "desc":
        items.reverse()
    first = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise ApiError(404, "the list has no item of this id", param="after")
        first = places[0] + 1
    page = items[first : first + limit]
    ids = [item["id"] for item in page]
    return InputItemList(
        object="list",
        data=page,
        first_id=ids[0] if ids else "",
        last_id=ids[-1] if ids else "",
        has_more=len(items) > first + limit,
    )


@router.get(
    "/v1/responses/{response_id:path}",
    summary="A response's present state, or its events again",
    responses=answers(ResponseAnswer, ResponseEvent, says_done=False),
)
@router.get("/responses/{response_id:path}", include_in_schema=False)
async def get_response(
    request: Request,
    response_id: str,
    *,
    stream: Annotated[bool, Query(description="Stream the events of a background response until it ends.")] = False,
    starting_after: Annotated[int, Query(ge=-1, description="With `stream`: the number after which to start.")] = -1,
    include_obfuscation: bool | None = None,
    include: Include = [],  # noqa: B006
) -> Any:
    check_include(include)
    owner, responses, first = exchange_of(request.scope).owner, responses_of(request), starting_after + 1
    background = responses.find(owner, response_id)
    if background is not None:
        interval = state_of(request).config.sse_ping_interval
        return KeptResponse(background, first=first, ping_interval=interval) if stream else background.response()
    stored = await responses.stored(owner, response_id)
    if not stream:
        return Response(stored.response, media_type="application/json")
    if not stored.background:
        message = "This response cannot be streamed because it was not created with background=true."
        raise ApiError(400, message, param="stream")
    events = await asyncio.to_thread(events_from, stored, response_id, first)
    return Response(events, headers={name.decode(): value.decode() for name, value in SSE_HEADERS})


@router.post(
    "/v1/responses/{response_id:path}/cancel",
    summary="Cancel a response in the background, and return its state",
    responses=answers(ResponseAnswer),
)
@router.post("/responses/{response_id:path}/cancel", include_in_schema=False)
async def cancel_response(request: Request, response_id: str) -> Any:
    owner, responses = exchange_of(request.scope).owner, responses_of(request)
    background = responses.find(owner, response_id)
    if background is not None:
        background.cancel()
        await background.written()
        response = background.response()
        check_cancelled(response["status"])
        return response
    stored = await responses.stored(owner, response_id)
    if not stored.background:
        raise ApiError(400, "Cannot cancel a synchronous response.", param="response_id")
    check_cancelled(stored.status)
    return Response(stored.response, media_type="application/json")


def check_cancelled(status: str) -> None:
    """Raise ApiError, in OpenAI's words, for a response that was not cancelled but has ended."""
    if status != "cancelled":
        article = "an" if status == "incomplete" else "a"
        raise ApiError(400, f"Cannot cancel {article} {status} response.", param="response_id")


@router.delete("/v1/responses/{response_id:path}", summary="Delete a response", responses=answers(DeletedResponse))
@router.delete("/responses/{response_id:path}", include_in_schema=False)
async def delete_response(request: Request, response_id: str) -> Any:
    await responses_of(request).delete(exchange_of(request.scope).owner, response_id)
    return DeletedResponse(id=response_id, object="response", deleted=True)


def ends_an_id(request: Request, ending: str) -> bool:
    """Return whether the slash before the last word of a path was sent as part of an id, which the router cannot
    distinguish.
    """
    sent: bytes = request.scope.get("raw_path") or b""
    return sent.lower().endswith(ending.replace("/", "%2f").encode())
