"""From the events of a request to its answer: whole, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi.responses import JSONResponse, PlainTextResponse, Response

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.repetition import period_of
from pyllmcancel.errors import RequestCancelled, RequestFailed
from pyllmcancel.events import Limit
from pyllmcancel.server.delivered import ALL, DELTAS, FAILURE, NOTHING, OPENING
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.http.connection import connection_of, watched
from pyllmcancel.server.http.exchange import exchange_of

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.requests.request import Request
    from pyllmcancel.requests.token_stream import AsyncStream
    from pyllmcancel.scheduling.forecast import Ahead
    from pyllmcancel.server.behind import WorkerLink
    from pyllmcancel.server.dialect import Dialect

T = TypeVar("T")
Write = Callable[[bytes], Awaitable[None]]
Broken = RequestCancelled | RequestFailed | ApiError
ErrorForReader = Callable[[Broken], ApiError | None]
# Answers of more tokens are encoded in a thread: the event loop must notice disconnects meanwhile.
INLINE_ANSWER = 4_096
DONE = b"data: [DONE]\n\n"
SSE_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
)
DRAFTS = "X-Draft"


class AnswerEvents:
    """The events of one answer, from the first to the last.

    After a silence of `ping_interval` seconds the dialect's ping is written, so that proxies do not take the connection
    for dead; 0: never. With it comes what the request waits for, as `ahead` returns it. Events that another server has
    delivered, by the link to the front, are left out.
    """

    def __init__(
        self,
        stream: AsyncStream,
        dialect: Dialect,
        ping_interval: float,
        link: WorkerLink | None = None,
        ahead: Callable[[], Ahead | None] = lambda: None,
    ) -> None:
        self._stream = stream
        self._dialect = dialect
        self._ping_interval = ping_interval
        self._ahead = ahead
        self._link = link
        self._written_at = 0.0
        self.names_events = dialect.names_events

    async def write_to(self, write: Write, error_for_reader: ErrorForReader) -> bool:
        """Pass the events to `write` as they come, and return whether the last one was written.

        If the answer breaks off, `error_for_reader` returns the error that a reader gets; None if no reader is left, so
        that nothing more is written.
        """
        pinger = asyncio.create_task(self._ping(write), name=f"ping {self._stream.request.id}")
        try:
            await self._write_events(write, OPENING, self._dialect.opening())
            async for batch in self._stream.batches():
                chunks = [(delta, list(self._dialect.chunks(delta))) for delta in batch]
                new = [one for one in chunks if self._link is None or self._link.is_new(one[0])]
                events = [event for _, found in new for event in found]
                await self._write_events(write, DELTAS, events, [delta for delta, _ in new])
            last = await encode_in_thread_if_long(self._stream, lambda usage: list(self._dialect.closing(usage)))
            await self._dialect.keep()
        except (RequestCancelled, RequestFailed, ApiError) as error:
            is_read = error_for_reader(error) is not None
            await self.break_off(write if is_read else None, error)
            return is_read
        else:
            await self._write_events(write, ALL, last, end=DONE if self._dialect.says_done else b"")
            return True
        finally:
            # Before the end of the body: nothing may follow that.
            pinger.cancel()

    async def break_off(self, write: Write | None, error: Exception) -> None:
        """Write the last events of an answer that did not complete, if somebody reads them; it is stored as it is."""
        last = list(self._dialect.failure(api_error(error), self._stream.request.id))
        if not isinstance(error, ApiError):  # that an answer could not be stored is not stored either
            with suppress(ApiError):
                await self._dialect.keep()
        if write is not None:
            # No [DONE] after an error: a cut answer must not look whole.
            await self._write_events(write, FAILURE, last)

    async def _write_events(
        self,
        write: Write,
        part: int,
        events: Iterable[Mapping[str, Any]],
        new: Sequence[Delta] = (),
        *,
        end: bytes = b"",
    ) -> None:
        text = b"".join(frame(event, named=self.names_events) for event in events) + end
        if self._link is not None:
            text = self._link.marked(part, text, new)
        if text:
            self._written_at = time.monotonic()
            await write(text)

    async def _ping(self, write: Write) -> None:
        """Break the silence. A client that does not read blocks this task, as it blocks its answer, and no other."""
        self._written_at = time.monotonic()
        while self._ping_interval > 0:
            silence = time.monotonic() - self._written_at
            if silence < self._ping_interval:
                await asyncio.sleep(self._ping_interval - silence)
                continue
            self._written_at = time.monotonic()
            try:
                ping, ahead = self._dialect.ping, self._ahead()
                if ahead is not None:  # a comment says what the request waits for
                    about = "" if ahead.seconds is None else f", about {ahead.seconds:.0f} s"
                    ping = f": waiting, {ahead.position - 1} ahead{about}\n".encode() + ping
                await write(ping if self._link is None else self._link.marked(NOTHING, ping))
            except OSError:
                # Some servers report so that the client is gone.
                self._stream.cancel(CancelReason.DISCONNECT)
                return


async def encode_in_thread_if_long(stream: AsyncStream, word: Callable[[Usage], T]) -> T:
    """Encode a complete answer with `word`, which is called in a thread if there are many tokens to detokenize."""
    assert stream.ending is not None
    usage, request = stream.ending.usage, stream.request
    if request.n_prompt_tokens * request.params.n + usage.completion_tokens <= INLINE_ANSWER:
        return word(usage)
    return await asyncio.to_thread(word, usage)


def frame(event: Mapping[str, Any], *, named: bool = False) -> bytes:
    """Return a server-sent event."""
    # In ASCII: for some readers other characters end a line, too.
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"event: " + event["type"].encode() + b"\n" + data if named else data


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
            if exchange_of(scope).client_gone and connection is not None and exchange_of(scope).link is None:
                # The engine may have seen the client leave before the HTTP server did. To the HTTP server an answer
                # that ends too early is a defect: it would log it, and report it to the client.
                connection.drop()
                await client_left

    @abstractmethod
    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or call `client_error` and send the error that it returns."""


def client_error(scope: Scope, error: Broken) -> ApiError | None:
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
