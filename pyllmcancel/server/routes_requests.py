"""Looking at requests from outside, and cancelling them by id or by session."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.request import FinishReason, Request, RequestStatus, RequestSummary, Usage
from pyllmcancel.server.answers import (
    CancelAnswer,
    HeldAnswer,
    HeldSessionAnswer,
    OutsideStatus,
    RequestEntry,
    RequestList,
    SessionCancelAnswer,
    StepList,
)
from pyllmcancel.server.error_responses import ApiError, usage_json
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from pyllmcancel.registry import Registry
    from pyllmcancel.request import Ending
    from pyllmcancel.server.preparing import Preparation

router = APIRouter(prefix="/v1", tags=["Requests"], responses=errors(400, 503))

MAX_HOLD_SECONDS = 60.0
ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")
Wait = Annotated[bool, Query(description="Answer when the computation has stopped; false: at once.")]
Hold = Annotated[float, Query(ge=0, le=MAX_HOLD_SECONDS, description="Seconds to wait for an id that may still come.")]


@router.get("/requests", summary="Live requests, then the last that have ended", responses=answers(RequestList))
async def list_requests(http: HttpRequest, status: OutsideStatus | None = None) -> dict[str, Any]:
    state = state_of(http)
    registry = state.engine.registry
    live, ended = registry.requests(), registry.history()
    # One that ended in between is in both.
    known = {(summary.id, summary.created_at) for summary in ended}
    accepted = [request.summary() for request in live if (request.id, request.created_at) not in known]
    summaries = accepted + state.preparations.summaries() + ended
    shown = [summary_json(summary) for summary in summaries]
    return {"object": "list", "data": [entry for entry in shown if status is None or entry["status"] == status]}


# Ids and sessions are paths to the router: the clients choose them, and both may contain slashes.
@router.get("/requests/{request_id:path}", summary="One request", responses=answers(RequestEntry) | errors(404))
async def get_request(http: HttpRequest, request_id: str) -> dict[str, Any]:
    state = state_of(http)
    found = find_request(state.engine.registry, request_id)
    preparation = state.preparations.find(request_id)
    if preparation is not None and not isinstance(found, Request):
        return summary_json(preparation.summary())
    if found is None:
        raise unknown_id()
    return summary_json(found.summary() if isinstance(found, Request) else found)


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
            return await cancel_preparation(preparation, wait=wait)
    found = find_request(state.engine.registry, request_id, hold)
    if isinstance(found, Request):
        return await cancel_and_report(http, found, wait=wait)
    if found is not None:
        return already_finished(found)
    if hold > 0:
        return JSONResponse({"id": request_id, "outcome": "held", "hold_seconds": hold}, 202)
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
    newest = state.engine.registry.newest(session_id, 0.0 if prepared else hold)
    if prepared:
        # The newest one's answer; it has not superseded the others yet.
        if newest is not None:
            state.engine.cancel(newest)
        for older in prepared[:-1]:
            older.cancel(CancelReason.EXPLICIT)
        return await cancel_preparation(prepared[-1], wait=wait) | {"session": session_id}
    if newest is None and hold > 0:
        return JSONResponse({"session": session_id, "outcome": "held", "hold_seconds": hold}, 202)
    if newest is None:
        raise ApiError(404, "this session has no live request", code="unknown_session", param="session_id")
    return await cancel_and_report(http, newest, wait=wait) | {"session": session_id}


@router.get("/steps", summary="The last steps, newest first", responses=answers(StepList))
async def list_steps(http: HttpRequest, last: Annotated[int, Query(ge=1, le=1024)] = 100) -> dict[str, Any]:
    trace = state_of(http).engine.trace
    newest = trace.snapshot()[: -last - 1 : -1]
    return {"object": "list", "n_steps": trace.n_steps, "data": [record.as_dict() for record in newest]}


async def cancel_and_report(http: HttpRequest, request: Request, *, wait: bool) -> dict[str, Any]:
    decided = state_of(http).engine.cancel(request)
    if wait or request.ended.done() or not (decided or request.cancellation.requested):
        # Shielded: a client that leaves here must not undo anything.
        ending = await asyncio.shield(asyncio.wrap_future(request.ended))
        return report(request.id, ending)
    return {
        "id": request.id,
        "outcome": "cancelled",
        "reason": request.cancellation.reason,
        "phase": request.status,
        "cancel_latency_ms": None,
        "usage": usage_json(request.usage()),
    }


async def cancel_preparation(preparation: Preparation, *, wait: bool) -> dict[str, Any]:
    began = time.monotonic()
    preparation.cancel(CancelReason.EXPLICIT)
    if wait:
        await preparation.ended.wait()
    return {
        "id": preparation.id,
        "outcome": "cancelled",
        "reason": preparation.reason,
        "phase": RequestStatus.PREPARING,
        "cancel_latency_ms": milliseconds(time.monotonic() - began) if wait else None,
        "usage": usage_json(Usage()),
    }


def report(request_id: str, ending: Ending) -> dict[str, Any]:
    cancelled = ending.finish_reason is FinishReason.CANCELLED
    return {
        "id": request_id,
        "outcome": "cancelled" if cancelled else "already_finished",
        "reason": ending.cancel_reason if cancelled else ending.finish_reason,
        "phase": ending.phase,
        "cancel_latency_ms": milliseconds(ending.cancel_latency),
        "usage": usage_json(ending.usage),
    }


def already_finished(summary: RequestSummary) -> dict[str, Any]:
    assert summary.ending is not None
    return report(summary.id, summary.ending) | {"outcome": "already_finished"}


def summary_json(summary: RequestSummary) -> dict[str, Any]:
    ending = summary.ending
    return {
        "id": summary.id,
        "object": "request",
        "status": outside_status(summary),
        "phase": ending.phase if ending is not None else summary.status,
        "session": summary.session,
        "n": summary.n,
        "slots": summary.slots,
        "prompt_tokens": summary.prompt_tokens,
        "prompt_tokens_done": summary.prompt_tokens_done,
        "cached_tokens": summary.cached_tokens,
        "completion_tokens": summary.completion_tokens,
        "finish_reason": ending.finish_reason if ending is not None else None,
        "cancel_reason": summary.cancel_reason,
        "superseded_by": summary.superseded_by,
        "cancel_latency_ms": milliseconds(ending.cancel_latency) if ending is not None else None,
        "error": ending.error if ending is not None else None,
        "created": summary.created_at,
        "seconds": round(summary.seconds, 4),
    }


def outside_status(summary: RequestSummary) -> OutsideStatus:
    """The status as it is shown: "cancelling" is derived, an ending says which."""
    match summary.ending:
        case None if summary.cancel_reason is not None:
            return "cancelling"
        case None:
            waits = summary.status in (RequestStatus.PREPARING, RequestStatus.WAITING)
            return "waiting" if waits else "running"
        case ending if ending.finish_reason is FinishReason.CANCELLED:
            return "cancelled"
        case ending if ending.finish_reason is FinishReason.ERROR:
            return "error"
        case _:
            return "finished"


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


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
