"""The session that a request belongs to: named by its client, or by ``--session-by``."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.limits import MAX_SESSION_ID
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel.server.wire import GeneratingBody


def session_of(request: Request, body: GeneratingBody) -> str | None:
    """The session a request names, or belongs to by ``--session-by``; the kinds cannot be mistaken for each other."""
    session_by = state_of(request).config.session_by
    named = request.headers.get("x-session-id") or body.session_id
    if named:
        refuse_session_of_others(named, session_by)
        return named
    match session_by:
        case "user":
            user = body.user or body.safety_identifier or body.prompt_cache_key
            return f"user:{shortened(user)}" if user else None
        case "client-ip":
            return f"ip:{request.client.host}" if request.client is not None else None
        case _:
            return None


def shortened(name: str) -> str:
    """A key of limited length for a name of any length."""
    return name if len(name) <= MAX_SESSION_ID else hashlib.sha256(name.encode()).hexdigest()


def refuse_session_of_others(named: str, session_by: str) -> None:
    """A client that could name the session of another user, or address, could cancel the requests of it."""
    reserved = {"user": "user:", "client-ip": "ip:"}.get(session_by)
    if reserved is not None and named.startswith(reserved):
        raise InvalidRequestError(f"names of sessions cannot begin with {reserved} here", "session_id")
    if len(named) > MAX_SESSION_ID:
        raise InvalidRequestError(f"a session id has at most {MAX_SESSION_ID} characters", "session_id")
