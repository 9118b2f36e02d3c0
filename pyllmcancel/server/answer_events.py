"""An answer as server-sent events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import RequestCancelled, RequestFailed
from pyllmcancel.server.delivered import ALL, DELTAS, FAILURE, NOTHING, OPENING
from pyllmcancel.server.errors.responses import ApiError, api_error

if TYPE_CHECKING:
    from pyllmcancel.events import Delta, Usage
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
