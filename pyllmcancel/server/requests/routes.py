"""``/v1/requests`` and ``/v1/steps``: list and cancel requests, and look at steps."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.openapi.description import answer_of, answers, asks, errors
from pyllmcancel.server.requests.answers import (
    CancelAnswer,
    CancelList,
    HeldAnswer,
    OutsideStatus,
    RequestEntry,
    RequestList,
    StepList,
    UnknownAnswer,
    outside_status,
    step_entry,
)
from pyllmcancel.server.requests.body import CancelBody
from pyllmcancel.server.requests.visible import See, check_may_see_all, summary_of
from pyllmcancel.server.state import state_of

router = APIRouter(prefix="/v1", tags=["Requests"], responses=errors(400, 403, 409, 503))

MAX_HOLD_SECONDS = 60.0
Wait = Annotated[bool, Query(description="Answer when the computation has stopped; false: at once.")]
Hold = Annotated[
    float, Query(ge=0, le=MAX_HOLD_SECONDS, description="Seconds to wait for an id that is not known yet.")
]
PathName = Annotated[str, Path(max_length=MAX_NAME)]


@router.get("/requests", summary="Live requests, then the last ended ones", responses=answers(RequestList))
async def list_requests(
    see: See, status: OutsideStatus | None = None, session: Annotated[str | None, Query(max_length=MAX_NAME)] = None
) -> Any:
    summaries = [one for one in see.summaries() if session in (None, one.session)]
    data = [see.entry(one) for one in summaries if status in (None, outside_status(one))]
    # Not by FastAPI's encoder, which would hold up the event loop eight times as long.
    return JSONResponse(RequestList(object="list", data=data))


@router.post(
    "/requests/cancel",
    summary="Cancel several requests, by ids or by a filter",
    openapi_extra=asks(CancelBody),
    responses=answers(CancelList) | errors(413, 415),
)
async def cancel_requests(
    see: See, incoming: Annotated[Incoming[CancelBody], reads(CancelBody)], wait: Wait = True, hold: Hold = 0.0
) -> Any:
    body = incoming.body
    see = see.narrowed(body.owner)
    if body.request_ids is None:
        return CancelList(object="list", data=[*await see.cancel(see.live(body.session, body.status), wait=wait)])
    found = {request_id: see.find(request_id, hold) for request_id in body.request_ids}
    done = iter(await see.cancel([one for one in found.values() if one is not None], wait=wait))
    data = [not_found(request_id, hold) if one is None else next(done) for request_id, one in found.items()]
    return CancelList(object="list", data=data)


# Ids are path parameters to the router: clients choose them, and they may contain slashes.
@router.get("/requests/{request_id:path}", summary="One request", responses=answers(RequestEntry) | errors(404))
async def get_request(see: See, request_id: PathName) -> Any:
    found = see.find(request_id)
    if found is None:
        raise unknown_id()
    return see.entry(summary_of(found))


@router.post(
    "/requests/{request_id:path}/cancel",
    summary="Cancel a request, and return how it ended",
    responses=answers(CancelAnswer) | errors(404) | {202: answer_of(HeldAnswer, "The request may still come")},
)
@router.delete(
    "/requests/{request_id:path}",
    summary="Cancel a request, as by POST",
    responses=answers(CancelAnswer) | errors(404) | {202: answer_of(HeldAnswer, "The request may still come")},
)
async def cancel_request(see: See, request_id: PathName, wait: Wait = True, hold: Hold = 0.0) -> Any:
    if (found := see.find(request_id, hold)) is not None:
        return (await see.cancel([found], wait=wait))[0]
    if hold > 0:
        return JSONResponse(not_found(request_id, hold), 202)
    raise unknown_id()


@router.get("/steps", summary="The last steps, newest first", responses=answers(StepList))
async def list_steps(http: HttpRequest, last: Annotated[int, Query(ge=1, le=1024)] = 100) -> Any:
    check_may_see_all(http)
    trace = state_of(http).engine.trace
    newest = trace.snapshot()[: -last - 1 : -1]
    steps = [step_entry(record) for record in newest]
    return JSONResponse(StepList(object="list", n_steps=trace.n_steps, data=steps))


def not_found(request_id: str, hold: float) -> HeldAnswer | UnknownAnswer:
    """Return the answer for an id that is not known. The id is held if `hold` is positive."""
    if hold > 0:
        return HeldAnswer(id=request_id, outcome="held", hold_seconds=hold)
    return UnknownAnswer(id=request_id, outcome="unknown")


def unknown_id() -> ApiError:
    # The answer neither repeats the id nor names another: ids are what a cancel needs.
    return ApiError(404, "there is no request of this id", code="unknown_request", param="request_id")
