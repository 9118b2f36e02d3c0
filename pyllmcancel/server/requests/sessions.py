"""``/v1/sessions``: list sessions, and cancel all requests of one and its descendants."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.openapi.description import answer_of, answers, errors
from pyllmcancel.server.requests.answers import (
    SessionCancelAnswer,
    SessionEntry,
    SessionList,
    session_entry,
)
from pyllmcancel.server.requests.routes import Hold, PathName, Wait
from pyllmcancel.server.requests.visible import See

router = APIRouter(prefix="/v1", tags=["Requests"], responses=errors(400, 403, 409, 503))

Descendants = Annotated[bool, Query(description="Cancel the sessions below it, too.")]


@router.get("/sessions", summary="Sessions, the most recently used first", responses=answers(SessionList))
async def list_sessions(
    see: See, live: Annotated[bool, Query(description="Only the sessions that have live requests.")] = False
) -> Any:
    sessions = [session_entry(one) for one in see.sessions() if one.requests or not live]
    return JSONResponse(SessionList(object="list", data=sessions))


# Session names are path parameters to the router: clients choose them, and they may contain slashes.
@router.get("/sessions/{session_id:path}", summary="One session", responses=answers(SessionEntry) | errors(404))
async def get_session(see: See, session_id: PathName) -> Any:
    found = see.session(session_id)
    if found is None:
        raise unknown_session()
    return session_entry(found)


@router.post(
    "/sessions/{session_id:path}/cancel",
    summary="Cancel all live requests of a session and its descendants",
    responses=answers(SessionCancelAnswer)
    | errors(404)
    | {202: answer_of(SessionCancelAnswer, "The session may still come")},
)
async def cancel_session(
    see: See, session_id: PathName, wait: Wait = True, hold: Hold = 0.0, descendants: Descendants = True
) -> Any:
    found = see.find_session(session_id, descendants=descendants, hold=hold)
    cancelled = None if found is None else await see.cancel(found, wait=wait)
    if cancelled is None and hold == 0.0:
        raise unknown_session()
    answer = SessionCancelAnswer(
        session=session_id, descendants=descendants, requests=cancelled or [], hold_seconds=hold or None
    )
    return JSONResponse(answer, 202) if cancelled is None else answer


def unknown_session() -> ApiError:
    return ApiError(404, "this session is unknown", code="unknown_session", param="session_id")
