"""From a prompt's tokens to a request of the engine, and from its events to the answer: whole, or in a stream."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fastapi.responses import JSONResponse, Response

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, RequestCancelled, RequestFailed
from pyllmcancel.requests.token_stream import AsyncStream, Bound, LoopSink
from pyllmcancel.server.errors.openai import openai_error
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.http.body_limit import body_is_used
from pyllmcancel.server.http.connection import connection_of, watched
from pyllmcancel.server.http.request_context import is_client_gone, mark_client_gone, request_id_of
from pyllmcancel.server.limits import FEW_UNREAD, MAX_UNREAD

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.requests.request import GenerationParams, Request
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.wire.fields import GeneratingBody

T = TypeVar("T")
# Longer prompts are submitted in a thread, because making the samplers, which read them, takes time.
INLINE_PROMPT = 20_000
# Answers of more tokens are encoded in a thread: the event loop must notice disconnects meanwhile.
INLINE_ANSWER = 4_096
DRAFTS = "X-Draft"
# A comment, which every reader of server-sent events skips.
PING = b": ping\n\n"
SSE_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
)


class Dialect(ABC):
    """The format of one endpoint's answers.

    Attributes
    ----------
    says_done
        True if a complete stream ends with OpenAI's ``[DONE]``.
    names_events
        True if the type of an event, which is in its data, is also its name in the stream.
    ping
        The text that is sent after a silence.
    """

    says_done: ClassVar[bool] = False
    names_events: ClassVar[bool] = False
    ping: ClassVar[bytes] = PING

    def opening(self) -> Iterable[Mapping[str, Any]]:
        """Return the events before the first delta."""
        return ()

    @abstractmethod
    def chunks(self, delta: Delta) -> Iterable[Mapping[str, Any]]:
        """Return the events of one delta."""

    @abstractmethod
    def closing(self, usage: Usage) -> Iterable[Mapping[str, Any]]:
        """Return the events after the last delta of a complete answer."""

    def failure(self, error: ApiError, request_id: str) -> Iterable[Mapping[str, Any]]:
        """Return the last events of an answer that broke off, which must not look complete."""
        yield openai_error(error, request_id)

    async def keep(self) -> None:  # noqa: B027 - most keep nothing
        """Store an answer, if need be. Called when an answer, whole or broken off, has been encoded, before its end is
        sent.

        Raises
        ------
        ApiError
            The answer cannot be stored as requested. This error is sent instead, in a stream by `failure`.
        """

    @abstractmethod
    def whole(self, deltas: list[Delta], usage: Usage) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        """Return a complete answer in one piece."""


async def generate(
    incoming: Incoming[GeneratingBody],
    prompts: Sequence[Sequence[int]],
    params: GenerationParams,
    dialect: Dialect,
    *,
    ping_interval: float | None = None,
) -> EngineResponse:
    """Submit a request, and answer in the requested form. The engine's errors pass through to the handlers.

    A `ping_interval` in seconds takes the place of the server's own.
    """
    stream = await submit(incoming, prompts, params)
    if not incoming.body.stream:
        return WholeResponse(stream, dialect)
    interval = incoming.state.config.sse_ping_interval if ping_interval is None else ping_interval
    return EventStreamResponse(stream, dialect, interval)


async def submit(
    incoming: Incoming[GeneratingBody], prompts: Sequence[Sequence[int]], params: GenerationParams
) -> AsyncStream:
    """Submit a request, and return the stream of its events. The engine's errors pass through to the handlers."""
    state, body, origin = incoming.state, incoming.body, incoming.origin
    state.check_model(body.model)
    engine = state.engine
    params = replace(params, max_tokens=state.config.limited(params.max_tokens))
    # An answer in one piece is read by this server, so it needs no bound.
    bound = Bound(MAX_UNREAD, FEW_UNREAD, engine.registry.wake) if body.stream else None
    sink = LoopSink(asyncio.get_running_loop(), bound)
    work = partial(engine.submit, prompts, params, sink, **origin)
    try:
        with engine_failure_told(engine):
            if is_laborious(prompts, params):
                request = await state.preparations.submit(work, origin, engine.cancel)
            else:
                request = work()
    except InvalidRequestError as error:
        # The engine calls the field a prompt; this client's body may name it otherwise.
        error.param = body.own_name(error.param)
        raise
    state.preparations.supersede(origin)
    # Other servers, and applications that mount this one, cancel the task of a client that has left.
    return AsyncStream(request, engine, sink, CancelReason.DISCONNECT)


def is_laborious(prompts: Sequence[Sequence[int]], params: GenerationParams) -> bool:
    """Return whether it takes long to make the samplers, which read the prompt, and some of them the vocabulary."""
    reads_much = bool(params.sampling.grammar) or params.sampling.dry_multiplier > 0.0
    n_tokens = sum(map(len, prompts)) + len(prompts) * len(params.sampling.logit_bias)
    return reads_much or params.n * n_tokens > INLINE_PROMPT


@contextmanager
def engine_failure_told(engine: Engine) -> Iterator[None]:
    """Report an engine that has failed. It is closed, too, but unlike at a shutdown there is nothing to wait for."""
    try:
        yield
    except EngineClosedError:
        if engine.failure is None:
            raise
        raise ApiError(500, f"the engine has failed: {engine.failure}", "server_error", code="engine_failed") from None


class EngineResponse(Response, ABC):
    """An answer that the engine computes.

    It watches for its client's leaving from the first moment. Leaving ``__call__``, in any way, cancels the request if
    it still runs. The engine frees the computation's resources when it has really ended.
    """

    def __init__(self, stream: AsyncStream) -> None:
        super().__init__()
        self._stream = stream

    @property
    def request(self) -> Request:
        """Read-only."""
        return self._stream.request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body_is_used(scope)
        cancel = partial(self._stream.cancel, CancelReason.DISCONNECT)
        connection = connection_of(scope)
        answering = nullcontext() if connection is None else connection.answering(self._stream.cancel)
        with answering, watched(receive, cancel) as client_left:
            try:
                await self._answer(scope, receive, send)
            finally:
                cancel()
            if is_client_gone(scope) and connection is not None:
                # The engine may have seen the client leave before the HTTP server did. To the HTTP server an answer
                # that ends too early is a defect: it would log it, and report it to the client.
                connection.drop()
                await client_left

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or call `error_told` and send the error that it returns."""

    async def _worded(self, word: Callable[[Usage], T]) -> T:
        """Encode a complete answer with `word`, which is called in a thread if there are many tokens to detokenize."""
        assert self._stream.ending is not None
        usage = self._stream.ending.usage
        if self.request.n_prompt_tokens * self.request.params.n + usage.completion_tokens <= INLINE_ANSWER:
            return word(usage)
        return await asyncio.to_thread(word, usage)


def error_told(scope: Scope, error: RequestCancelled | RequestFailed | ApiError) -> ApiError | None:
    """Return the error that a client gets if its request did not complete; None if it has left, or does not read."""
    if isinstance(error, RequestCancelled) and error.reason in (CancelReason.DISCONNECT, CancelReason.STALLED):
        mark_client_gone(scope)
        return None
    return api_error(error)


class WholeResponse(EngineResponse):
    """The answer in one piece, with a status that says how it ended."""

    def __init__(self, stream: AsyncStream, dialect: Dialect) -> None:
        super().__init__(stream)
        self._dialect = dialect

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        deltas: list[Delta] = []
        try:
            async for batch in self._stream.batches():
                deltas += batch
            response = await self._worded(lambda usage: whole_answer(self._dialect.whole(deltas, usage), usage))
            await self._dialect.keep()
        except (RequestCancelled, RequestFailed, ApiError) as error:
            told = error_told(scope, error)
            if told is None:
                return
            response = told.response_to(scope)
        await response(scope, receive, send)


def whole_answer(answer: Any, usage: Usage) -> Response:
    """Return a complete answer. If tokens were drafted, a header says how many, and how many were accepted."""
    headers = {}
    if usage.drafts:
        headers[DRAFTS] = ", ".join(f"{one.source} {one.n_accepted}/{one.n_drafted}" for one in usage.drafts)
    return JSONResponse(answer, headers=headers)


class EventStreamResponse(EngineResponse):
    """Server-sent events. The headers go out at once: they carry the id by which the request can be cancelled.

    Parameters
    ----------
    ping_interval
        Seconds of silence after which the dialect's ping is sent, so that proxies do not take the connection for dead;
        0: never.
    """

    def __init__(self, stream: AsyncStream, dialect: Dialect, ping_interval: float) -> None:
        super().__init__(stream)
        self._dialect = dialect
        self._ping_interval = ping_interval
        self._sent_at = 0.0

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
        pinger = asyncio.create_task(self._ping(send), name=f"ping {self.request.id}")
        try:
            complete = await self._send_answer(scope, send)
        finally:
            # Before the end of the body: nothing may follow that.
            pinger.cancel()
        if complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_answer(self, scope: Scope, send: Send) -> bool:
        """Send the events; False if the client has left."""
        try:
            await self._send_events(send, self._dialect.opening())
            async for batch in self._stream.batches():
                await self._send_events(send, (chunk for delta in batch for chunk in self._dialect.chunks(delta)))
            last = await self._worded(lambda usage: list(self._dialect.closing(usage)))
            await self._dialect.keep()
        except (RequestCancelled, RequestFailed, ApiError) as error:
            told = error_told(scope, error)
            last = list(self._dialect.failure(api_error(error), request_id_of(scope)))
            if not isinstance(error, ApiError):
                with suppress(ApiError):
                    await self._dialect.keep()
            if told is None:
                return False
            # No [DONE] after an error: a cut answer must not look whole.
            await self._send_events(send, last)
            return True
        await self._send_events(send, last)
        if self._dialect.says_done:
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        return True

    async def _send_events(self, send: Send, events: Iterable[Mapping[str, Any]]) -> None:
        body = b"".join(frame(event, named=self._dialect.names_events) for event in events)
        if body:
            self._sent_at = time.monotonic()
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _ping(self, send: Send) -> None:
        """Break the silence. A client that does not read blocks this task, as it blocks its answer, and no other."""
        self._sent_at = time.monotonic()
        while self._ping_interval > 0:
            silence = time.monotonic() - self._sent_at
            if silence < self._ping_interval:
                await asyncio.sleep(self._ping_interval - silence)
                continue
            self._sent_at = time.monotonic()
            try:
                await send({"type": "http.response.body", "body": self._dialect.ping, "more_body": True})
            except OSError:
                # Some servers report so that the client is gone.
                self._stream.cancel(CancelReason.DISCONNECT)
                return


def frame(event: Mapping[str, Any], *, named: bool = False) -> bytes:
    """Return a server-sent event."""
    # In ASCII: for some readers other characters end a line, too.
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"event: " + event["type"].encode() + b"\n" + data if named else data
