"""``/v1/responses/{id}``: responses that were created before."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from pyllmcancel.server.api_keys import owner_of
from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.responses.answer import (
    DeletedResponse,
    InputItemList,
    ResponseAnswer,
    ResponseEvent,
)
from pyllmcancel.server.responses.body import INCLUDABLE
from pyllmcancel.server.responses.desk import desk_of
from pyllmcancel.server.responses.following import FollowingResponse
from pyllmcancel.server.responses.log import Log, read
from pyllmcancel.server.state import state_of

router = APIRouter(tags=["OpenAI"], responses=errors(400, 404))

MOST_LISTED = 100
Include = Annotated[list[str], Query(max_length=32)]
CANNOT_CANCEL = {
    "completed": "Cannot cancel a completed response.",
    "failed": "Cannot cancel a failed response.",
    "incomplete": "Cannot cancel an incomplete response.",
}


# Ids are paths to the router: they are made of the request's, and may contain slashes.
@router.get(
    "/v1/responses/{response_id:path}/input_items",
    summary="What a response was given, those before it included",
    responses=answers(InputItemList),
)
@router.get("/responses/{response_id:path}/input_items", include_in_schema=False)
async def list_input_items(
    request: Request,
    response_id: str,
    *,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
    include: Include = [],  # noqa: B006 - FastAPI makes each request its own
) -> Any:
    check_include(include)
    items = await desk_of(request).input_items(owner_of(request.scope), response_id)
    if order == "desc":
        items.reverse()
    first = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise ApiError(404, "no item of this id is among them", param="after")
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
    summary="A response as it stands, or its events once more",
    responses=answers(ResponseAnswer, ResponseEvent, says_done=False),
)
@router.get("/responses/{response_id:path}", include_in_schema=False)
async def get_response(
    request: Request,
    response_id: str,
    *,
    stream: Annotated[bool, Query(description="Its events, of one in the background, until it ends.")] = False,
    starting_after: Annotated[int, Query(ge=-1, description="With `stream`: those after the one of this number.")] = -1,
    include_obfuscation: bool | None = None,
    include: Include = [],  # noqa: B006
) -> Any:
    check_include(include)
    owner, desk = owner_of(request.scope), desk_of(request)
    background = desk.find(owner, response_id)
    if background is not None:
        return following(request, background.log, starting_after) if stream else background.response()
    kept = await desk.kept(owner, response_id)
    if not stream:
        return Response(kept.response, media_type="application/json")
    if not kept.background:
        message = "This response cannot be streamed because it was not created with background=true."
        raise ApiError(400, message, param="stream")
    return following(request, Log(*read(kept)), starting_after)


@router.post(
    "/v1/responses/{response_id:path}/cancel",
    summary="Cancel a response in the background, and learn how it stands",
    responses=answers(ResponseAnswer),
)
@router.post("/responses/{response_id:path}/cancel", include_in_schema=False)
async def cancel_response(request: Request, response_id: str) -> Any:
    owner, desk = owner_of(request.scope), desk_of(request)
    background = desk.find(owner, response_id)
    if background is not None:
        background.cancel()
        await background.ended.wait()
        response = background.response()
        check_cancelled(response["status"])
        return response
    kept = await desk.kept(owner, response_id)
    if not kept.background:
        raise ApiError(400, "Cannot cancel a synchronous response.", param="response_id")
    check_cancelled(kept.status)
    return Response(kept.response, media_type="application/json")


@router.delete("/v1/responses/{response_id:path}", summary="Forget a response", responses=answers(DeletedResponse))
@router.delete("/responses/{response_id:path}", include_in_schema=False)
async def delete_response(request: Request, response_id: str) -> Any:
    await desk_of(request).delete(owner_of(request.scope), response_id)
    return DeletedResponse(id=response_id, object="response", deleted=True)


def following(request: Request, log: Log, after: int) -> FollowingResponse:
    return FollowingResponse(log, after, state_of(request).config.sse_ping_interval)


def check_include(include: list[str]) -> None:
    """What can be included is there if the request that created the response asked for it."""
    for name in include:
        if name not in INCLUDABLE:
            raise ApiError(400, f"{name[:100]!r} cannot be included here", param="include", code="invalid_request")


def check_cancelled(status: str) -> None:
    """ApiError for a response that has ended otherwise; as OpenAI words it."""
    if status != "cancelled":
        raise ApiError(400, CANNOT_CANCEL[status], param="response_id")
