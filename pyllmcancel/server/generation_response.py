"""The HTTP side of a request's stream: an answer in one piece, or server-sent events.

Both watch for the client's leaving from the first moment, by awaiting ``receive()``: that is the one way that works in
the queue, in prefill, while streaming, and while ``send`` is blocked by a client that does not read. Leaving
``__call__`` in any way cancels the request if it still runs; what the computation holds is the engine's to clean up,
when it has really ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from fastapi.responses import JSONResponse, Response

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import RequestCancelled, RequestFailed
from pyllmcancel.server.error_responses import api_error
from pyllmcancel.server.request_context import mark_client_gone, request_id_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.request import Delta, Usage
    from pyllmcancel.token_stream import AsyncStream

SSE_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Dialect(Protocol):
    """How one endpoint words an answer."""

    def opening(self) -> Iterable[dict[str, Any]]:
        """Events before the first delta."""

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """Events of one delta."""

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """Events after the last delta of a complete answer."""

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        """A complete answer in one piece."""


class GenerationResponse(Response):
    """Base of both; subclasses say how the stream is sent."""

    def __init__(self, stream: AsyncStream, dialect: Dialect) -> None:
        super().__init__()
        self._stream = stream
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.create_task(self._watch(receive), name=f"watch {self._stream.request.id}")
        try:
            await self._answer(scope, receive, send)
        finally:
            self._stream.cancel(CancelReason.DISCONNECT)
            watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._stream.cancel(CancelReason.DISCONNECT)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


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
            assert self._stream.ending is not None
            response = JSONResponse(self._dialect.whole(deltas, self._stream.ending.usage))
        await response(scope, receive, send)


class EventStreamResponse(GenerationResponse):
    """Server-sent events. The headers go out at once: they carry the id by which the request can be cancelled."""

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in SSE_HEADERS.items()]
        headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await _send_events(send, self._dialect.opening())
            async for batch in self._stream.batches():
                await _send_events(send, (chunk for delta in batch for chunk in self._dialect.chunks(delta)))
        except (RequestCancelled, RequestFailed) as error:
            if isinstance(error, RequestCancelled) and error.reason is CancelReason.DISCONNECT:
                mark_client_gone(scope)
                return
            # No [DONE] after an error: a cut answer must not look whole.
            await _send_events(send, [api_error(error).body(request_id_of(scope))])
        else:
            assert self._stream.ending is not None
            await _send_events(send, self._dialect.closing(self._stream.ending.usage))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_events(send: Send, events: Iterable[dict[str, Any]]) -> None:
    body = b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events)
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
