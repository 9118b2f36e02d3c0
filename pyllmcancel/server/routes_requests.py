"""``/v1/requests``, ``/v1/sessions`` and ``/v1/steps``: list and cancel requests, and look at steps."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import RequestStatus, Usage
from pyllmcancel.request import Request, RequestSummary
from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.request_answers import (
    CancelAnswer,
    HeldAnswer,
    HeldSessionAnswer,
    OutsideStatus,
    RequestEntry,
    RequestList,
    SessionCancelAnswer,
    StepList,
    cancel_answer,
    ended_answer,
    request_entry,
    step_entry,
)
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from pyllmcancel.registry import Registry
    from pyllmcancel.server.preparing import Preparation

router = APIRouter(prefix="/v1", tags=["Requests"], responses=errors(400, 503))

MAX_HOLD_SECONDS = 60.0
ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")
Wait = Annotated[bool, Query(description="Answer when the computation has stopped; false: at once.")]
Hold = Annotated[float, Query(ge=0, le=MAX_HOLD_SECONDS, description="Seconds to wait for an id that may still come.")]


@router.get("/requests", summary="Live requests, then the last that have ended", responses=answers(RequestList))
async def list_requests(http: HttpRequest, status: OutsideStatus | None = None) -> Any:
    state = state_of(http)
    registry = state.engine.registry
    live, ended = registry.requests(), registry.history()
    # One that ended in between is in both.
    known = {(summary.id, summary.created_at) for summary in ended}
    accepted = [request.summary() for request in live if (request.id, request.created_at) not in known]
    # One that is being submitted may have been accepted already.
    known_ids = {summary.id for summary in accepted + ended}
    prepared = [summary for summary in state.preparations.summaries() if summary.id not in known_ids]
    summaries = accepted + prepared + ended
    entries = [request_entry(summary) for summary in summaries]
    return RequestList(object="list", data=[entry for entry in entries if status in (None, entry["status"])])


# Ids and sessions are paths to the router: the clients choose them, and both may contain slashes.
@router.get("/requests/{request_id:path}", summary="One request", responses=answers(RequestEntry) | errors(404))
async def get_request(http: HttpRequest, request_id: str) -> Any:
    state = state_of(http)
    found = find_request(state.engine.registry, request_id)
    preparation = state.preparations.find(request_id)
    if preparation is not None and not isinstance(found, Request):
        return request_entry(preparation.summary())
    if found is None:
        raise unknown_id()
    return request_entry(found.summary() if isinstance(found, Request) else found)


@router.post(
    "/requests/{request_id:path}/cancel",
    summary="Cancel a request, and learn how it ended",
    responses=answers(CancelAnswer) | errors(404) | {202: {"model": HeldAnswer, "description": "It may still come"}},
)
async def cancel_request(http: HttpRequest, request_id: str, wait: Wait = True, hold: Hold = 0.0) -> Any:
    state = state_of(http)
    preparation = state.preparations.find(request_id)
    if preparation is not None:
        preparation.cancel(CancelReason.EXPLICIT)
        # An id that is used a second time while the first lives: both are meant.
        if not isinstance(find_request(state.engine.registry, request_id), Request):
            return await cancel_preparation(http, preparation, wait=wait)
    found = find_request(state.engine.registry, request_id, hold)
    if isinstance(found, Request):
        return await cancel_and_report(http, found, wait=wait)
    if found is not None:
        assert found.ending is not None
        return ended_answer(found.id, found.ending, before=True)
    if hold > 0:
        return JSONResponse(HeldAnswer(id=request_id, outcome="held", hold_seconds=hold), 202)
    raise unknown_id()


@router.post(
    "/sessions/{session_id:path}/cancel",
    summary="Cancel a session's live request",
    responses=answers(SessionCancelAnswer)
    | errors(404)
    | {202: {"model": HeldSessionAnswer, "description": "It may still come"}},
)
async def cancel_session(http: HttpRequest, session_id: str, wait: Wait = True, hold: Hold = 0.0) -> Any:
    state = state_of(http)
    prepared = state.preparations.of_session(session_id)
    newest = state.engine.registry.newest(session_id)
    if newest is None and not prepared and hold > 0:
        state.engine.registry.family(session_id, hold=hold)
    if prepared:
        # The newest one's answer; it has not superseded the others yet.
        if newest is not None:
            state.engine.cancel(newest)
        for older in prepared[:-1]:
            older.cancel(CancelReason.EXPLICIT)
        return SessionCancelAnswer(**await cancel_preparation(http, prepared[-1], wait=wait), session=session_id)
    if newest is None and hold > 0:
        return JSONResponse(HeldSessionAnswer(session=session_id, outcome="held", hold_seconds=hold), 202)
    if newest is None:
        raise ApiError(404, "this session has no live request", code="unknown_session", param="session_id")
    return SessionCancelAnswer(**await cancel_and_report(http, newest, wait=wait), session=session_id)


@router.get("/steps", summary="The last steps, newest first", responses=answers(StepList))
async def list_steps(http: HttpRequest, last: Annotated[int, Query(ge=1, le=1024)] = 100) -> Any:
    trace = state_of(http).engine.trace
    newest = trace.snapshot()[: -last - 1 : -1]
    return StepList(object="list", n_steps=trace.n_steps, data=[step_entry(record) for record in newest])


async def cancel_and_report(http: HttpRequest, request: Request, *, wait: bool) -> CancelAnswer:
    decided = state_of(http).engine.cancel(request)
    reason = request.cancellation.reason
    if wait or request.ended.done() or (not decided and reason is None):
        # Shielded: a client that leaves here must not undo anything.
        return ended_answer(request.id, await asyncio.shield(asyncio.wrap_future(request.ended)))
    assert reason is not None
    return cancel_answer(request.id, reason, request.status, request.usage())


async def cancel_preparation(http: HttpRequest, preparation: Preparation, *, wait: bool) -> CancelAnswer:
    began = time.monotonic()
    preparation.cancel(CancelReason.EXPLICIT)
    if wait:
        await preparation.ended.wait()
        if preparation.accepted is not None:
            return await cancel_and_report(http, preparation.accepted, wait=wait)
    assert preparation.reason is not None
    latency = time.monotonic() - began if wait else None
    return cancel_answer(preparation.id, preparation.reason, RequestStatus.PREPARING, Usage(), latency)


def find_request(registry: Registry, request_id: str, hold: float = 0.0) -> Request | RequestSummary | None:
    """As `Registry.find`, but an answer's ``id`` field is accepted for the request's own id."""
    found = registry.find(request_id)
    for prefix in ANSWER_PREFIXES:
        if found is None and request_id.startswith(prefix):
            found = registry.find(request_id.removeprefix(prefix))
    # Looked for once more, because looking and holding must be one.
    return registry.find(request_id, hold) if found is None else found


def unknown_id() -> ApiError:
    # The id is not repeated, nor any other named: ids are what a cancel needs.
    return ApiError(404, "no request of this id is known", code="unknown_request", param="request_id")
