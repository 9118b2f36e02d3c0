"""The HTTP side of a request's stream: an answer in one piece, or server-sent events.

Both watch for the client's leaving from the first moment. Leaving ``__call__`` in any way cancels the request if it
still runs; what the computation holds is the engine's to clean up, when it has really ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fastapi.responses import JSONResponse, Response

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import RequestCancelled, RequestFailed
from pyllmcancel.server.connection import connection_of, watched
from pyllmcancel.server.error_responses import api_error
from pyllmcancel.server.request_context import is_client_gone, mark_client_gone, request_id_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.request import Request
    from pyllmcancel.token_stream import AsyncStream

T = TypeVar("T")
# Answers to more tokens are put into words in a thread: the event loop must notice disconnects meanwhile.
INLINE_TOKENS = 4_096
# A comment, which every reader of server-sent events skips.
PING = b": ping\n\n"
SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Dialect(Protocol):
    """How one endpoint words an answer; `says_done` if a complete stream ends with OpenAI's ``[DONE]``."""

    says_done: bool

    def opening(self) -> Iterable[Mapping[str, Any]]:
        """Events before the first delta."""

    def chunks(self, delta: Delta) -> Iterable[Mapping[str, Any]]:
        """Events of one delta."""

    def closing(self, usage: Usage) -> Iterable[Mapping[str, Any]]:
        """Events after the last delta of a complete answer."""

    def whole(self, deltas: list[Delta], usage: Usage) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        """A complete answer in one piece."""


class WatchedResponse(Response):
    """Base of all answers that are computed; subclasses say how the stream is sent."""

    def __init__(self, stream: AsyncStream) -> None:
        super().__init__()
        self._stream = stream

    @property
    def generation(self) -> Request:
        """To look at, not to touch."""
        return self._stream.request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cancel = partial(self._stream.cancel, CancelReason.DISCONNECT)
        with watched(receive, cancel) as client_left:
            try:
                await self._answer(scope, receive, send)
            finally:
                cancel()
            connection = connection_of(scope)
            if is_client_gone(scope) and connection is not None:
                # The engine may have seen it before the HTTP server did, to which an answer that ends too early is a
                # defect: it would log it, and tell the client.
                connection.drop()
                await client_left

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


class GenerationResponse(WatchedResponse):
    """Base of those that a dialect words."""

    def __init__(self, stream: AsyncStream, dialect: Dialect) -> None:
        super().__init__(stream)
        self._dialect = dialect

    async def _worded(self, word: Callable[[Usage], T]) -> T:
        """What `word` makes of a complete answer; called in a thread if there are many tokens to spell out."""
        assert self._stream.ending is not None
        usage = self._stream.ending.usage
        if self.generation.n_prompt_tokens * self.generation.params.n + usage.completion_tokens <= INLINE_TOKENS:
            return word(usage)
        return await asyncio.to_thread(word, usage)


class WholeResponse(GenerationResponse):
    """The answer in one piece, with a status that says how it ended."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        deltas: list[Delta] = []
        try:
            async for batch in self._stream.batches():
                deltas += batch
        except (RequestCancelled, RequestFailed) as error:
            if isinstance(error, RequestCancelled) and error.reason is CancelReason.DISCONNECT:
                mark_client_gone(scope)
                return
            response = api_error(error).response(request_id_of(scope))
        else:
            response = await self._worded(lambda usage: JSONResponse(self._dialect.whole(deltas, usage)))
        await response(scope, receive, send)


class EventStreamResponse(GenerationResponse):
    """Server-sent events. The headers go out at once: they carry the id by which the request can be cancelled.

    Parameters
    ----------
    ping_interval
        Seconds of silence after which a comment is sent, so that proxies do not take the connection for dead; 0: never.
    """

    def __init__(self, stream: AsyncStream, dialect: Dialect, ping_interval: float = 0.0) -> None:
        super().__init__(stream, dialect)
        self._ping_interval = ping_interval
        self._sent_at = 0.0

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in SSE_HEADERS.items()]
        headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if self._ping_interval <= 0:
            complete = await self._send_answer(scope, send)
        else:
            pinger = asyncio.create_task(self._ping(send), name=f"ping {self._stream.request.id}")
            try:
                complete = await self._send_answer(scope, send)
            finally:
                # Before the end of the body: nothing may follow that.
                pinger.cancel()
        if complete:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_answer(self, scope: Scope, send: Send) -> bool:
        """Send the events; False if there is nobody left to send them to."""
        try:
            await self._send_events(send, self._dialect.opening())
            async for batch in self._stream.batches():
                await self._send_events(send, (chunk for delta in batch for chunk in self._dialect.chunks(delta)))
        except (RequestCancelled, RequestFailed) as error:
            if isinstance(error, RequestCancelled) and error.reason is CancelReason.DISCONNECT:
                mark_client_gone(scope)
                return False
            # No [DONE] after an error: a cut answer must not look whole.
            await self._send_events(send, [api_error(error).body(request_id_of(scope))])
        else:
            await self._send_events(send, await self._worded(lambda usage: list(self._dialect.closing(usage))))
            if self._dialect.says_done:
                await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        return True

    async def _send_events(self, send: Send, events: Iterable[Mapping[str, Any]]) -> None:
        # In ASCII: to some readers other characters end a line too.
        body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        if body:
            self._sent_at = time.monotonic()
            await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _ping(self, send: Send) -> None:
        """Break the silence. A client that does not read blocks this task, as it blocks the other, and no one else."""
        self._sent_at = time.monotonic()
        while True:
            silence = time.monotonic() - self._sent_at
            if silence < self._ping_interval:
                await asyncio.sleep(self._ping_interval - silence)
                continue
            self._sent_at = time.monotonic()
            try:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
            except OSError:
                # How some servers say that the client is gone.
                self._stream.cancel(CancelReason.DISCONNECT)
                return
