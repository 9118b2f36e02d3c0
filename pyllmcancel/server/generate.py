"""From a prompt's tokens to a request of the engine, and from its events to the answer: whole, or in a stream."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse, PlainTextResponse, Response

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.repetition import period_of
from pyllmcancel.errors import RequestCancelled, RequestFailed
from pyllmcancel.events import Limit
from pyllmcancel.requests.token_stream import AsyncStream, Bound, LoopSink
from pyllmcancel.server.answer_events import SSE_HEADERS, AnswerEvents, encode_in_thread_if_long
from pyllmcancel.server.behind import link_of
from pyllmcancel.server.bodies import FieldNames
from pyllmcancel.server.delivered import DELTAS
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.http.connection import connection_of, watched
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.limits import FEW_UNREAD, MAX_UNREAD
from pyllmcancel.server.preparing import working
from pyllmcancel.server.streams.kept import KeptAnswer
from pyllmcancel.server.streams.reading import KeptResponse

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.requests.request import Request
    from pyllmcancel.server.behind import WorkerLink
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.delivered import Promise
    from pyllmcancel.server.dialect import Dialect
    from pyllmcancel.server.wire.generation import LlamaFields

# For longer prompts the samplers, which read them, are made in a thread.
INLINE_PROMPT = 20_000
DRAFTS = "X-Draft"


@dataclass(frozen=True, slots=True)
class Plan:
    """The work for the engine. Neither the answer nor its dialect keeps the plan: its body may be long."""

    incoming: Incoming[LlamaFields]
    prompts: Sequence[Sequence[int]]
    params: GenerationParams
    names: FieldNames  # the body's names of fields, by the engine's


async def generate(plan: Plan, dialect: Dialect) -> EngineResponse | KeptResponse:
    """Submit a request, and answer in the requested form. The engine's errors pass through to the handlers."""
    incoming, keeping, streams = plan.incoming, plan.incoming.keeping, plan.incoming.state.streams
    if keeping is not None:
        streams.make_room(incoming.request.owner, keeping.name)
    stream, link = await submit(plan), incoming.exchange.link
    if not incoming.body.stream:
        return WholeResponse(stream, partial(whole_answer, dialect, link))
    own = incoming.body.sse_ping_interval
    interval = incoming.state.config.sse_ping_interval if own is None else max(0, own)
    ahead = partial(incoming.state.engine.ahead_of, incoming.request)
    events = AnswerEvents(stream, dialect, interval, link, ahead)
    if keeping is None:
        return EventStreamResponse(stream, events)
    kept = KeptAnswer(keeping, stream, events)
    streams.begin(kept)
    return KeptResponse(kept)


async def submit(plan: Plan) -> AsyncStream:
    """Submit a request, and return the stream of its events. The engine's errors pass through to the handlers."""
    incoming, prompts, params = plan.incoming, plan.prompts, plan.params
    state, request, engine = incoming.state, incoming.request, incoming.state.engine
    link: WorkerLink | None = incoming.exchange.link
    if link is not None and link.delivered is not None and link.delivered.promise is not None:
        params = replace(params, sampling=replace(params.sampling, seed=link.delivered.promise.seed))
    # An answer in one piece is read by this server, so it needs no bound.
    bound = Bound(MAX_UNREAD, FEW_UNREAD, engine.registry.wake) if incoming.body.stream else None
    sink = LoopSink(asyncio.get_running_loop(), bound)
    with plan.names.in_errors():
        if is_laborious(prompts, params):
            fill = partial(engine.fill, request, prompts, params, sink)
            await incoming.prepare(lambda _pause: fill(), state.fillers)
        else:
            with working(engine, request):
                engine.fill(request, prompts, params, sink)
        promise = None if link is None else link.go_on(request, await state.digest())
        return accepted(incoming, sink, promise)


def accepted(incoming: Incoming[Any], sink: LoopSink, promise: Promise | None = None) -> AsyncStream:
    """Have the engine accept the request, which has been filled, and return the stream of its events."""
    engine, request = incoming.state.engine, incoming.request
    link: WorkerLink | None = incoming.exchange.link
    engine.accept(request, again=link is not None and link.is_again)
    if link is not None:
        link.accepted(request, promise)
    # Other servers, and applications that mount this one, cancel the task of a client that has left.
    return AsyncStream(request, engine, sink, CancelReason.DISCONNECT)


def is_laborious(prompts: Sequence[Sequence[int]], params: GenerationParams) -> bool:
    """Return whether it takes long to make the samplers, which read the prompt, and some of them the vocabulary."""
    reads_much = bool(params.sampling.grammar) or params.sampling.dry_multiplier > 0.0
    n_tokens = sum(map(len, prompts)) + len(prompts) * len(params.sampling.logit_bias)
    return reads_much or params.n * n_tokens > INLINE_PROMPT


class EngineResponse(Response, ABC):
    """An answer that the engine computes.

    It watches for its client's leaving from the first moment. Leaving ``__call__``, in any way, cancels the request if
    it still runs. The engine frees the computation's resources when it has really ended.
    """

    def __init__(self, stream: AsyncStream) -> None:
        super().__init__()
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The content has been turned into the engine's input: its room is free before the answer begins, which may take
        # long. Not earlier: the texts of bodies that wait to be tokenized are as long as the bodies were.
        exchange_of(scope).hold.release()
        cancel = partial(self._stream.cancel, CancelReason.DISCONNECT)
        connection = connection_of(scope)
        answering = nullcontext() if connection is None else connection.answering(self._stream.cancel)
        with answering, watched(receive, cancel) as client_left:
            try:
                await self._answer(scope, receive, send)
            finally:
                cancel()
            if exchange_of(scope).client_gone and connection is not None and link_of(scope) is None:
                # The engine may have seen the client leave before the HTTP server did. To the HTTP server an answer
                # that ends too early is a defect: it would log it, and report it to the client.
                connection.drop()
                await client_left

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or call `client_error` and send the error that it returns."""


def client_error(scope: Scope, error: RequestCancelled | RequestFailed | ApiError) -> ApiError | None:
    """Return the error that a client gets if its request did not complete; None if it has left, or does not read."""
    if isinstance(error, RequestCancelled) and error.reason in (CancelReason.DISCONNECT, CancelReason.STALLED):
        exchange_of(scope).client_gone = True
        return None
    return api_error(error)


class WholeResponse(EngineResponse):
    """The answer in one piece, as `read` makes it of the stream, with a status that says how it ended."""

    def __init__(self, stream: AsyncStream, read: Callable[[AsyncStream], Awaitable[Response]]) -> None:
        super().__init__(stream)
        self._read = read

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._read(self._stream)
        except (RequestCancelled, RequestFailed, ApiError) as error:
            shown = client_error(scope, error)
            if shown is None:
                return
            response = shown.response_to(scope)
        await response(scope, receive, send)


async def whole_answer(dialect: Dialect, link: WorkerLink | None, stream: AsyncStream) -> Response:
    """Return a complete answer. If tokens were drafted, a header says how many, and how many were accepted."""
    deltas: list[Delta] = []
    async for batch in stream.batches():
        deltas += batch
        if link is not None:
            link.marked(DELTAS, b"", [delta for delta in batch if link.is_new(delta)])

    def encoded(usage: Usage) -> Response:
        answer = dialect.whole(less_repeated(deltas, stream.request), usage)
        drafts = ", ".join(f"{one.source} {one.n_accepted}/{one.n_drafted}" for one in usage.drafts)
        kind = PlainTextResponse if isinstance(answer, str) else JSONResponse
        return kind(answer, headers={DRAFTS: drafts} if drafts else {})

    response = await encode_in_thread_if_long(stream, encoded)
    await dialect.keep()
    return response


def less_repeated(deltas: list[Delta], request: Request) -> list[Delta]:
    """Leave out the last two periods of the choices that ended because they repeat themselves."""
    for last in [delta for delta in deltas if delta.limit is Limit.REPETITION]:
        period = period_of(request.choices[last.index].generated, request.params.repetition_limit)
        assert period, "the engine has found one in the same tokens"
        # each token has come in a delta
        dropped = [delta for delta in deltas if delta.index == last.index][-2 * period :]
        ids = {id(delta) for delta in dropped}
        deltas = [delta for delta in deltas if id(delta) not in ids]
        deltas.append(replace(last, text="", tokens=(), logprobs=()))
    return deltas


class EventStreamResponse(EngineResponse):
    """Server-sent events. The headers go out at once: they carry the id by which the request can be cancelled."""

    def __init__(self, stream: AsyncStream, events: AnswerEvents) -> None:
        super().__init__(stream)
        self._events = events

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(events: bytes) -> None:
            await send({"type": "http.response.body", "body": events, "more_body": True})

        await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
        if await self._events.write_to(write, partial(client_error, scope)):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
