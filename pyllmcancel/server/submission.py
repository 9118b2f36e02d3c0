"""From a parsed body to a running request: tokens, session, submission. Shared by all dialects."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fastapi import Request

from pyllmcancel.errors import EngineClosedError, InvalidRequestError
from pyllmcancel.server.connection import connection_of
from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.generation_response import Dialect, EventStreamResponse, GenerationResponse, WholeResponse
from pyllmcancel.server.limits import MAX_SESSION_ID
from pyllmcancel.server.request_context import arrival_of, request_id_of
from pyllmcancel.server.state import state_of
from pyllmcancel.token_stream import AsyncStream, LoopSink

if TYPE_CHECKING:
    from pyllmcancel.engine import Engine
    from pyllmcancel.request import GenerationParams
    from pyllmcancel.server.wire import GeneratingBody

# Longer prompts are submitted in a thread: making the samplers, which read them, takes its time.
INLINE_TOKENS = 20_000


async def submit(
    request: Request,
    body: GeneratingBody,
    prompts: Sequence[Sequence[int]],
    params: GenerationParams,
    dialect: Dialect,
    *,
    ping_interval: float | None = None,
) -> GenerationResponse:
    """Submit, and answer in the form that was asked for. The engine's errors pass through to the handlers.

    A `ping_interval` in seconds takes the place of the server's own.
    """
    state = state_of(request)
    state.check_model(body.model)
    engine = state.engine
    params = replace(params, max_tokens=state.config.limited(params.max_tokens))
    session = session_of(request, body)
    sink = LoopSink(asyncio.get_running_loop())
    try:
        with failure_told(engine):
            work = partial(
                engine.submit,
                prompts,
                params,
                sink,
                request_id=request_id_of(request.scope),
                session=session,
                arrived_at=arrival_of(request.scope),
                client=connection_of(request.scope),
            )
            if is_laborious(prompts, params):
                accepted = await state.preparations.submit(request, work, session, engine.cancel)
            else:
                accepted = work()
    except InvalidRequestError as error:
        # The engine knows of prompts; what this client has sent may be called otherwise.
        if error.param == "prompt" and hasattr(body, "messages"):
            error.param = "messages"
        raise
    state.preparations.supersede(session, arrival_of(request.scope))
    stream = AsyncStream(accepted, engine, sink)
    if body.stream:
        interval = state.config.sse_ping_interval if ping_interval is None else ping_interval
        return EventStreamResponse(stream, dialect, interval)
    return WholeResponse(stream, dialect)


def is_laborious(prompts: Sequence[Sequence[int]], params: GenerationParams) -> bool:
    """Whether it takes long to make the samplers, which read the prompt, and some of them the vocabulary."""
    reads_much = bool(params.sampling.grammar) or params.sampling.dry_multiplier > 0.0
    n_tokens = sum(map(len, prompts)) + len(prompts) * len(params.sampling.logit_bias)
    return reads_much or params.n * n_tokens > INLINE_TOKENS


@contextmanager
def failure_told(engine: Engine) -> Iterator[None]:
    """An engine that has failed is closed too; but there is nothing to wait for, unlike at a shutdown."""
    try:
        yield
    except EngineClosedError:
        if engine.failure is None:
            raise
        raise ApiError(500, f"the engine has failed: {engine.failure}", "server_error", code="engine_failed") from None


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
    """A name of any length as a key of a bearable one."""
    return name if len(name) <= MAX_SESSION_ID else hashlib.sha256(name.encode()).hexdigest()


def refuse_session_of_others(named: str, session_by: str) -> None:
    """A client that could name the session of another user, or address, could cancel the requests of it."""
    reserved = {"user": "user:", "client-ip": "ip:"}.get(session_by)
    if reserved is not None and named.startswith(reserved):
        raise InvalidRequestError(f"names of sessions cannot begin with {reserved} here", "session_id")
    if len(named) > MAX_SESSION_ID:
        raise InvalidRequestError(f"a session id has at most {MAX_SESSION_ID} characters", "session_id")
