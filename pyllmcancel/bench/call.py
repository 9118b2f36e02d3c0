"""A request under way: sent, read, and cut at any moment."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

import h11

from pyllmcancel.bench.answer import AnswerReader, ErrorKind, ExchangeError
from pyllmcancel.bench.connection import Connection
from pyllmcancel.bench.exchange import Ask, Exchange, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyllmcancel.bench.connection import Address
    from pyllmcancel.bench.exchange import Target

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


class Maker(Protocol):
    """What makes requests of one server, and keeps its idle connections."""

    target: Target
    address: Address

    def body(self, ask: Ask) -> bytes: ...
    def request(
        self, method: str, path: str, body: bytes, *, keep: bool | None = None, more: Mapping[str, str] | None = None
    ) -> h11.Request: ...
    def take(self) -> Connection | None: ...
    def give_back(self, connection: Connection) -> None: ...


class Call:
    """A request under way.

    `cut` hangs up: from then on nothing that arrives counts. Once the exchange has an outcome it is a no-op.
    """

    def __init__(self, client: Maker, ask: Ask) -> None:
        self.exchange = Exchange(ask, began_at=time.monotonic())
        self._client = client
        self._connection: Connection | None = None
        self._cut_at: float | None = None
        self._sent = asyncio.Event()
        self._first_token = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"exchange {ask.request_id}")

    async def ended(self) -> Exchange:
        """Wait for the end."""
        await asyncio.shield(self._task)
        return self.exchange

    @property
    def is_over(self) -> bool:
        return self.exchange.outcome is not None

    async def sent(self) -> bool:
        """Wait until everything is with the socket; False if it ended before."""
        await self._sent.wait()
        return self.exchange.sent_at is not None

    async def first_token(self) -> bool:
        """Wait for the first token; False if it ended before."""
        await self._first_token.wait()
        return bool(self.exchange.token_at)

    def cut(self) -> float:
        """Hang up; the monotonic time at which the client closed, or had ended before."""
        if self.exchange.ended_at is not None:
            return self.exchange.ended_at
        if self._cut_at is None:
            self._cut_at = self.exchange.ended_at = time.monotonic()
            if self._connection is not None:
                self._connection.abort()
        return self._cut_at

    async def _run(self) -> None:
        exchange = self.exchange
        timer: asyncio.TimerHandle | None = None
        try:
            async with asyncio.timeout(self._client.target.timeout):
                await self._send()
                timer = self._start_timer()
                await self._receive()
            exchange.outcome = Outcome.OK
        except (ExchangeError, OSError, TimeoutError, h11.RemoteProtocolError) as error:
            self._fail(error)
        finally:
            if timer is not None:
                timer.cancel()
            if exchange.ended_at is None:
                exchange.ended_at = time.monotonic()
            self._let_go()
            self._sent.set()
            self._first_token.set()

    def _start_timer(self) -> asyncio.TimerHandle | None:
        match self.exchange.ask.cut_after:
            case None:
                return None
            case seconds if seconds <= 0.0:
                # In the very step of the event loop that sent it: nothing of an answer has been read.
                self.cut()
                return None
            case seconds:
                return asyncio.get_running_loop().call_later(seconds, self.cut)

    async def _send(self) -> None:
        client, exchange = self._client, self.exchange
        body = client.body(exchange.ask)
        more = {"X-Request-Id": exchange.ask.request_id}
        if exchange.ask.supersede is not None:
            more |= dict.fromkeys(client.target.supersede_headers, exchange.ask.supersede)
        request = client.request("POST", PATHS[client.target.api], body, more=more)
        self._connection = client.take()
        exchange.reused = self._connection is not None
        if self._connection is None:
            try:
                self._connection = await Connection.open(client.address)
            except OSError as error:
                raise ExchangeError(ErrorKind.CONNECT_FAILED, str(error)) from error
            exchange.connected_at = time.monotonic()
        self._stop_if_cut()
        await self._connection.send(request, body)
        exchange.sent_at = time.monotonic()
        self._sent.set()

    async def _receive(self) -> None:
        assert self._connection is not None
        reader: AnswerReader | None = None
        while True:
            self._stop_if_cut()
            event = await self._connection.receive()
            self._stop_if_cut()
            now = time.monotonic()
            match event:
                case h11.Response():
                    reader = self._begin_answer(event, now)
                case h11.Data() if reader is not None:
                    reader.feed(bytes(event.data), now)
                    self._note_progress(reader)
                case h11.EndOfMessage() if reader is not None:
                    break
                case h11.ConnectionClosed() | h11.PAUSED:
                    raise ConnectionError("closed before the answer was complete")
        self.exchange.ended_at = now
        try:
            reader.finish()
        finally:
            self._note_end(reader)

    def _begin_answer(self, head: h11.Response, now: float) -> AnswerReader:
        self.exchange.first_byte_at, self.exchange.status = now, head.status_code
        content_type = next((value for name, value in head.headers if name == b"content-type"), b"")
        return AnswerReader(head.status_code, content_type.decode("latin-1").lower())

    def _note_progress(self, reader: AnswerReader) -> None:
        self.exchange.token_at = reader.token_at
        if reader.token_at:
            self._first_token.set()

    def _note_end(self, reader: AnswerReader) -> None:
        exchange = self.exchange
        exchange.finish_reason = reader.finish_reason
        exchange.prompt_tokens = reader.usage.get("prompt_tokens")
        exchange.completion_tokens = reader.usage.get("completion_tokens")
        exchange.text_sha256 = reader.text_sha256

    def _stop_if_cut(self) -> None:
        if self._cut_at is not None:
            raise ConnectionAbortedError

    def _fail(self, error: Exception) -> None:
        exchange = self.exchange
        if self._cut_at is not None:
            exchange.outcome = Outcome.CANCELLED
            return
        exchange.outcome = Outcome.ERROR
        match error:
            case ExchangeError():
                exchange.error, exchange.detail = error.kind, error.detail
            case TimeoutError():
                exchange.error = ErrorKind.TIMEOUT
            case h11.RemoteProtocolError() if self._connection is not None and not self._connection.at_eof:
                exchange.error, exchange.detail = ErrorKind.PROTOCOL_ERROR, str(error)
            case _:
                exchange.error, exchange.detail = self._kind_of_loss(), str(error)

    def _kind_of_loss(self) -> ErrorKind:
        """What it means that the connection is gone, by how far the answer had come."""
        if self.exchange.first_byte_at is not None:
            return ErrorKind.BROKEN_ANSWER
        return ErrorKind.KEEPALIVE_CLOSED if self.exchange.reused else ErrorKind.DISCONNECTED

    def _let_go(self) -> None:
        # Used again only if the answer was complete, be it an error; whatever else is closed by this.
        if self._connection is not None:
            self._client.give_back(self._connection)
