"""``/v1/requests``, ``/v1/sessions`` and ``/v1/steps``: list and cancel requests, and look at steps."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, model_validator

from pyllmcancel.requests.request import Request
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.limits import MAX_CANCELS, MAX_NAME, MAX_SESSION_ID
from pyllmcancel.server.openapi.description import answer_of, answers, errors
from pyllmcancel.server.requests import answers as wire
from pyllmcancel.server.requests.visible import See, check_may_see_all
from pyllmcancel.server.state import state_of
from pyllmcancel.server.wire.fields import RequestBody

router = APIRouter(prefix="/v1", tags=["Requests"], responses=errors(400, 403, 409, 503))

MAX_HOLD_SECONDS = 60.0
Wait = Annotated[bool, Query(description="Answer when the computation has stopped; false: at once.")]
Hold = Annotated[float, Query(ge=0, le=MAX_HOLD_SECONDS, description="Seconds to wait for an id that is not known.")]
PathName = Annotated[str, Path(max_length=MAX_NAME)]
Descendants = Annotated[bool, Query(description="Cancel the sessions below it, too.")]
RequestId = Annotated[str, Field(min_length=1, max_length=MAX_SESSION_ID)]
CANCELLED = answers(wire.CancelAnswer) | errors(404) | {202: answer_of(wire.HeldAnswer, "The request may still come")}


class CancelBody(RequestBody):
    """The requests to cancel: by their ids, or all live ones that a filter leaves."""

    # An unknown filter must not select more requests than was meant.
    model_config = ConfigDict(extra="forbid")

    request_ids: list[RequestId] | None = Field(None, min_length=1, max_length=MAX_CANCELS, fail_fast=True)
    session: str | None = Field(None, max_length=MAX_NAME, description="Requests of this session, not of descendants.")
    owner: str | None = Field(None, max_length=MAX_NAME, description="With an admin's key: requests of this owner.")
    status: wire.LiveStatus | None = None

    @classmethod
    def _is_given(cls, name: str, value: object) -> bool:
        # An empty filter must not select more requests than was meant, either.
        return value is not None

    @model_validator(mode="after")
    def _says_which(self) -> CancelBody:
        filters = (self.session, self.owner, self.status)
        if (self.request_ids is None) == all(one is None for one in filters):
            raise ValueError("needs either request_ids, or some of session, owner and status")
        return self


@router.get("/requests", summary="Live requests, then the last ended ones", responses=answers(wire.RequestList))
async def list_requests(
    see: See,
    status: wire.OutsideStatus | None = None,
    session: Annotated[str | None, Query(max_length=MAX_NAME)] = None,
) -> Any:
    summaries = [one for one in see.summaries() if session in (None, one.session)]
    data = [see.entry(one) for one in summaries if status in (None, wire.outside_status(one))]
    # Not by FastAPI's encoder, which would hold up the event loop eight times as long.
    return JSONResponse(wire.RequestList(object="list", data=data))


@router.post(
    "/requests/cancel", summary="Cancel several requests, by ids or by a filter", responses=answers(wire.CancelList)
)
async def cancel_requests(
    see: See, incoming: Annotated[Incoming[CancelBody], reads(CancelBody)], wait: Wait = True, hold: Hold = 0.0
) -> Any:
    body = incoming.body
    see = see.narrowed(body.owner)
    if body.request_ids is None:
        return wire.CancelList(object="list", data=[*await see.cancel(see.live(body.session, body.status), wait=wait)])
    found = {request_id: see.find_or_hold(request_id, hold) for request_id in body.request_ids}
    done = iter(await see.cancel([one for one in found.values() if one is not None], wait=wait))
    data = [not_found(request_id, hold) if one is None else next(done) for request_id, one in found.items()]
    return wire.CancelList(object="list", data=data)


# Ids are path parameters to the router: clients choose them, and they may contain slashes.
@router.get("/requests/{request_id:path}", summary="One request", responses=answers(wire.RequestEntry) | errors(404))
async def get_request(see: See, request_id: PathName) -> Any:
    found = see.find_or_hold(request_id)
    if found is None:
        raise unknown_id()
    return see.entry(found.summary() if isinstance(found, Request) else found)


@router.post(
    "/requests/{request_id:path}/cancel", summary="Cancel a request, and return how it ended", responses=CANCELLED
)
@router.delete("/requests/{request_id:path}", summary="Cancel a request, as by POST", responses=CANCELLED)
async def cancel_request(see: See, request_id: PathName, wait: Wait = True, hold: Hold = 0.0) -> Any:
    if (found := see.find_or_hold(request_id, hold)) is not None:
        return (await see.cancel([found], wait=wait))[0]
    if hold > 0:
        return JSONResponse(not_found(request_id, hold), 202)
    raise unknown_id()


@router.get("/steps", summary="The last steps, newest first", responses=answers(wire.StepList))
async def list_steps(http: HttpRequest, last: Annotated[int, Query(ge=1, le=1024)] = 100) -> Any:
    check_may_see_all(http)
    trace = state_of(http).engine.trace
    newest = trace.snapshot()[: -last - 1 : -1]
    steps = [wire.step_entry(record) for record in newest]
    return JSONResponse(wire.StepList(object="list", n_steps=trace.n_steps, data=steps))


def not_found(request_id: str, hold: float) -> wire.HeldAnswer | wire.UnknownAnswer:
    """Return the answer for an id that is not known. The id is held if `hold` is positive."""
    if hold > 0:
        return wire.HeldAnswer(id=request_id, outcome="held", hold_seconds=hold)
    return wire.UnknownAnswer(id=request_id, outcome="unknown")


def unknown_id() -> ApiError:
    # The answer neither repeats the id nor names another: ids are what a cancel needs.
    return ApiError(404, "there is no request of this id", code="unknown_request", param="request_id")


@router.get("/sessions", summary="Sessions, the most recently used first", responses=answers(wire.SessionList))
async def list_sessions(see: See, live: Annotated[bool, Query(description="With live requests only.")] = False) -> Any:
    sessions = [wire.session_entry(one) for one in see.sessions() if one.requests or not live]
    return JSONResponse(wire.SessionList(object="list", data=sessions))


# Session names are path parameters to the router: clients choose them, and they may contain slashes.
@router.get("/sessions/{session_id:path}", summary="One session", responses=answers(wire.SessionEntry) | errors(404))
async def get_session(see: See, session_id: PathName) -> Any:
    found = see.session(session_id)
    if found is None:
        raise unknown_session()
    return wire.session_entry(found)


@router.post(
    "/sessions/{session_id:path}/cancel",
    summary="Cancel all live requests of a session and its descendants",
    responses=answers(wire.SessionCancelAnswer)
    | errors(404)
    | {202: answer_of(wire.SessionCancelAnswer, "The session may still come")},
)
async def cancel_session(
    see: See, session_id: PathName, wait: Wait = True, hold: Hold = 0.0, descendants: Descendants = True
) -> Any:
    found = see.begin_session_cancel(session_id, descendants=descendants, hold=hold)
    cancelled = None if found is None else await see.cancel(found, wait=wait)
    if cancelled is None and hold == 0.0:
        raise unknown_session()
    answer = wire.SessionCancelAnswer(
        session=session_id, descendants=descendants, requests=cancelled or [], hold_seconds=hold or None
    )
    return JSONResponse(answer, 202) if cancelled is None else answer


def unknown_session() -> ApiError:
    return ApiError(404, "this session is unknown", code="unknown_session", param="session_id")
