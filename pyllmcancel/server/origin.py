"""The `Origin` of a request, from its head: its client; and its names, from headers, body and options: its groups.

A session groups requests. A request supersedes another only if its client names a key, by `X-Supersede`, or if the
server makes one for it, by ``--supersede``. Names belong to an owner: see `pyllmcancel.server.http.api_keys`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.requests.request import IDLE, ImpliedParent, Names, Origin, TraceContext
from pyllmcancel.server.http.connection import connection_of
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.limits import MAX_SESSION_ID
from pyllmcancel.server.state import state_of
from pyllmcancel.server.streams.kept import Keeping, conversation_key

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel.server.config import Implied
    from pyllmcancel.server.wire.fields import GeneratingBody


# In the order in which they are looked for.
SESSION_HEADERS = ("X-Session-Id", "x-session-affinity")
SESSION_FIELDS = ("session_id", "prompt_cache_key")
PARENT_HEADERS, PARENT_FIELDS = ("X-Parent-Session-Id",), ("parent_session_id",)
CONVERSATION_HEADERS = ("X-Conversation-Id",)  # llama-server's
KEY_HEADERS, KEY_FIELDS = ("X-Supersede",), ("supersede",)
PRIORITY = "X-Priority"
# W3C's format, in which version ff and a trace of zeros mean that there is none.
MAX_TRACESTATE = 1024
TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def plain_origin(request: Request) -> Origin:
    """Return the origin of a request, without its names."""
    state, exchange = state_of(request), exchange_of(request.scope)
    return Origin(
        request_id=exchange.request_id,
        owner=exchange.owner,
        arrived_at=exchange.arrived_at,
        client=connection_of(request.scope),
        trace=trace_context_of(request, state.model_name) if state.config.otel else None,
    )


def names_in_head(request: Request) -> Names:
    """Return the names in the headers of a request whose body has not been read; raises as `names_of`."""
    session, parent = named(request, SESSION_HEADERS), named(request, PARENT_HEADERS)
    if session is None:
        session, implied = agent_of(request)
        parent = parent or implied
    return Names(session, parent, named(request, KEY_HEADERS), priority_of(request, None))


def names_of(request: Request, body: GeneratingBody) -> tuple[Names, Keeping | None]:
    """Return the names of a request that generates, and how its answer is kept. InvalidRequestError if a name has a
    wrong form, or `keep_going` is not for a stream.
    """
    session, parent, key, _ = names_in_head(request)
    session = session or named_in(body, SESSION_FIELDS)
    parent = parent or named_in(body, PARENT_FIELDS)
    conversation = conversation_of(request, body)
    key = key or named_in(body, KEY_FIELDS)
    if key is None and conversation is not None:
        key = conversation_key(conversation)
    given = body.priority if "priority" in body.model_fields_set else None
    priority = IDLE if body.prefetch else priority_of(request, given)
    if priority != IDLE:  # it supersedes no other, nor another idle one, unless it says so
        how = state_of(request).config.supersede
        key = key or (None if how is None else key_by(how, request, body, session))
    if session is None and parent is None:  # requests of one trace may have several parents
        session = trace_of(request)
    return Names(session, parent, key, priority), keeping_of(request, body, conversation)


def priority_of(request: Request, in_body: int | str | None) -> int:
    """Return the engine's priority of a request, by its header, the field in its body, or its owner."""
    given = request.headers.get(PRIORITY) or in_body
    config = state_of(request).config
    if given in ("idle", IDLE) or (given is None and exchange_of(request.scope).owner in config.idle_owners):
        return IDLE
    try:
        number = int(given or 0)
    except ValueError:
        raise InvalidRequestError("must be an integer, or idle", PRIORITY) from None
    if not -(2**31) <= number < 2**31:
        raise InvalidRequestError("must have 32 bits", PRIORITY)
    return -number if config.low_priority_first else number


def agent_of(request: Request) -> tuple[str | None, ImpliedParent | None]:
    """Return the session and the parent that the own headers of an agent name; docs/clients.md has its table.

    Their values are no names of this server's API, so that those of a wrong form count as missing.
    """
    session, parent = agent_name(request, "X-Claude-Code-Session-Id"), None
    agent = agent_name(request, "x-claude-code-agent-id")
    if session is not None and agent is not None:
        # An agent's id may be a name that another session has, too.
        above = agent_name(request, "x-claude-code-parent-agent-id")
        session, parent = f"{session}:{agent}", session if above is None else f"{session}:{above}"
    elif session is None and "x-codex-window-id" in request.headers:  # else the others may mean something else
        session = agent_name(request, "thread-id")
        parent = agent_name(request, "x-codex-parent-thread-id") or agent_name(request, "session-id")
    session = session or agent_name(request, "agent-session-id")  # Goose's
    if session is None or not is_name(session):
        return None, None
    return session, None if parent in {None, session} or not is_name(parent) else ImpliedParent(parent)


def agent_name(request: Request, header: str) -> str | None:
    value = request.headers.get(header, "")
    return value if value.isascii() and is_name(value) else None


def named(request: Request, headers: tuple[str, ...]) -> str | None:
    """Return the first of these headers that is given; an empty one counts as missing."""
    for header in headers:
        value = request.headers.get(header)
        if value:
            try:  # sent as UTF-8: the same name may be in a path, or a body
                return checked(value.encode("latin-1").decode("utf-8"), header)
            except UnicodeDecodeError:
                raise InvalidRequestError("must be UTF-8", header) from None
    return None


def named_in(body: GeneratingBody, fields: tuple[str, ...]) -> str | None:
    """Return the first of these fields that the body has."""
    for field in fields:
        value = getattr(body, field)
        if value is not None:
            return checked(value, field)
    return None


def conversation_of(request: Request, body: GeneratingBody) -> str | None:
    """Return the name under which the request's stream can be taken up again; None if it has none.

    Answers in one piece have none: as in llama-server, they end when their clients leave.
    """
    if not body.stream or body.runs_alone or state_of(request).config.stream_keep <= 0:
        return None
    return named(request, CONVERSATION_HEADERS)


def checked(name: str, param: str) -> str:
    """Return `name`, if it has the form of a session's or a key's name."""
    if not is_name(name):
        message = f"must have 1 to {MAX_SESSION_ID} printable characters, without blanks at the ends"
        raise InvalidRequestError(message, param)
    return name


def is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_SESSION_ID and name.isprintable() and name == name.strip()


def key_by(how: Implied, request: Request, body: GeneratingBody, session: str | None = None) -> str | None:
    """Return the key that a request would have by ``--supersede``: one for each class of endpoint.

    It begins with a blank, so that no client can name it. Requests that generate nothing, as editors send them to warm
    the cache up, have none: they must not supersede what their user waits for.
    """
    kind = body.request_class
    if kind is None or (kind == "chat" and not state_of(request).config.supersede_chats):
        return None
    if body.only_warms or body.prefetch:
        return None
    match how:
        case "client-ip":
            name = None if request.client is None else request.client.host
        case "user":
            name = body.end_user
        case "session":
            name = session
    return None if not name else f" {how} {name} {kind}"


def trace_context_of(request: Request, model: str) -> TraceContext:
    headers = request.headers
    state = headers.get("tracestate", "")
    # W3C says to pass on at most 32 entries of a tracestate, and at least 512 characters.
    tracestate = state if 0 < len(state) <= MAX_TRACESTATE else None
    return TraceContext(headers.get("traceparent"), tracestate, request.scope["path"], model)


def trace_of(request: Request) -> str | None:
    """Return the trace that a request is part of, as a session: it groups an agent's requests of one turn."""
    found = TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return None if found is None else f"trace:{found[1]}"


def keeping_of(request: Request, body: GeneratingBody, conversation: str | None) -> Keeping | None:
    """Return how the answer is kept; None if it ends when its client leaves, or is kept by a front."""
    wanted, most = body.keep_going or None, state_of(request).config.stream_keep
    if body.runs_alone:
        return None
    if wanted is not None and not body.stream:
        raise InvalidRequestError("only a stream can go on without its reader: set `stream`, too", "keep_going")
    if wanted is not None and most <= 0:
        body.ignore("keep_going")
        return None
    exchange = exchange_of(request.scope)
    if (wanted is None and conversation is None) or exchange.link is not None:
        return None
    seconds = wanted if isinstance(wanted, float) else math.inf
    return Keeping(conversation or exchange.request_id, min(seconds, most))
