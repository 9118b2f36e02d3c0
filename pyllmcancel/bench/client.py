"""A client of one server: requests with exact times, each of which can be cut at any moment.

Connections use h11, so that nothing happens on them without the caller.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, cast

import h11
import httpx

from pyllmcancel.bench.answer import AnswerReader, ErrorKind, ExchangeError
from pyllmcancel.bench.exchange import Ask, Exchange, Outcome, Target

__all__ = ["Ask", "Call", "Client", "Exchange", "Outcome", "Target"]
READ_SIZE = 65_536
PATHS = {"completions": "v1/completions", "chat": "v1/chat/completions"}


def parse_url(url: str) -> httpx.URL:
    """Parse ``http://host:port[/prefix]``, without a trailing ``/v1``, which the requested paths contain; ValueError if
    it is no URL of http or https.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"not a URL: {url!r}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"not a http:// or https:// URL: {url!r}")
    return parsed.copy_with(path=parsed.path.rstrip("/").removesuffix("/v1") + "/")


class Connection:
    """A socket and the state of HTTP/1.1 on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._socket = writer.get_extra_info("socket")
        self._http = h11.Connection(h11.CLIENT)
        self.at_eof = False  # True if the server has closed its side, as seen while reading

    @classmethod
    async def open(cls, url: httpx.URL) -> Connection:
        context = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if context else 80)
        reader, writer = await asyncio.open_connection(url.host, port, ssl=context)
        # So drain() returns when nothing is left in user space: "sent" means that the socket has taken everything.
        writer.transport.set_write_buffer_limits(high=0)
        return cls(reader, writer)

    async def send(self, request: h11.Request, body: bytes) -> None:
        """Send headers and body in one write; returns when the socket has taken everything."""
        events = (request, h11.Data(data=body), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()

    async def receive(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next part of the answer; h11.RemoteProtocolError if the connection ends before the answer is
        complete.
        """
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return cast("h11.Event | type[h11.PAUSED]", event)
            data = await self._reader.read(READ_SIZE)
            self.at_eof = not data
            self._http.receive_data(data)

    def abort(self) -> None:
        """Close at once, in any state: the server gets a FIN before this returns. Idempotent."""
        # asyncio closes a socket when its loop comes to that, which is milliseconds later on cores that a server keeps
        # busy.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._writer.transport.abort()


class Client:
    """Sends requests to one server, each on a connection of its own. Not thread-safe; for use in one event loop."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.url = parse_url(target.url)
        # Made once: reading the machine's certificates takes longer than most requests do.
        self._verify = ssl.create_default_context() if self.url.scheme == "https" else False

    def start(self, ask: Ask) -> Call:
        """Begin a request; the call continues by itself."""
        return Call(self, ask)

    async def ask(self, ask: Ask) -> Exchange:
        """Send a request, and wait for its end."""
        return await self.start(ask).ended()

    async def fetch(self, method: str, path: str, body: Any = None, *, within: float = 60.0) -> tuple[int, bytes]:
        """Return status and body of a request beside the load, on a connection that is used once; ExchangeError if
        there is no answer.
        """
        key = {} if self.target.api_key is None else {"Authorization": f"Bearer {self.target.api_key}"}
        try:
            async with httpx.AsyncClient(verify=self._verify, trust_env=False, timeout=within, headers=key) as client:
                answer = await client.request(method, self.url.join(path.removeprefix("/")), json=body)
        except (httpx.TransportError, OSError) as error:
            raise ExchangeError(ErrorKind.CONNECT_FAILED, f"{method} {path}: {error or 'timed out'}") from error
        return answer.status_code, answer.content

    async def fetch_json(self, method: str, path: str, body: Any = None) -> Any:
        """As `fetch`; None if the server does not know the path, or does not answer with JSON."""
        status, content = await self.fetch(method, path, body)
        try:
            return json.loads(content) if status == 200 else None
        except ValueError:
            return None

    def head(self, ask: Ask, n_bytes: int) -> h11.Request:
        """Return the head of a generation request with a body of this length."""
        headers = {"Host": self.url.netloc.decode(), "User-Agent": "pyllmcancel-bench", "X-Request-Id": ask.request_id}
        headers |= {"Content-Type": "application/json", "Content-Length": str(n_bytes), "Connection": "close"}
        if self.target.api_key is not None:
            headers["Authorization"] = f"Bearer {self.target.api_key}"
        if ask.supersede is not None:
            headers |= dict.fromkeys(self.target.supersede_headers, ask.supersede)
        path = self.url.join(PATHS[self.target.api]).raw_path
        return h11.Request(method="POST", target=path, headers=list(headers.items()))

    def body(self, ask: Ask) -> bytes:
        """Return the body of a generation request; greedy, so that answers can be compared."""
        target = self.target
        fields: dict[str, Any] = {"model": target.model, "max_tokens": ask.max_tokens, "temperature": 0.0}
        if target.api == "chat":
            fields["messages"] = [{"role": "user", "content": ask.prompt}]
        else:
            fields["prompt"] = ask.prompt
        if target.stream if ask.stream is None else ask.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        if target.ignore_eos:
            fields["ignore_eos"] = True
        return json.dumps(fields | dict(target.extra) | dict(ask.fields)).encode()


class Call:
    """A request under way.

    `cut` hangs up: from then on nothing that arrives counts. Once the exchange has an outcome it is a no-op.
    """

    def __init__(self, client: Client, ask: Ask) -> None:
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
        """Wait until the socket has taken everything; False if the call ended before."""
        await self._sent.wait()
        return self.exchange.sent_at is not None

    async def first_token(self) -> bool:
        """Wait for the first token; False if the call ended before."""
        await self._first_token.wait()
        return bool(self.exchange.token_at)

    def cut(self) -> float:
        """Hang up; return the monotonic time at which the client closed, or had ended before."""
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
            if self._connection is not None:
                self._connection.abort()
            self._sent.set()
            self._first_token.set()

    def _start_timer(self) -> asyncio.TimerHandle | None:
        seconds = self.exchange.ask.cut_after
        if seconds is not None and seconds > 0.0:
            return asyncio.get_running_loop().call_later(seconds, self.cut)
        if seconds is not None:
            # In the same step of the event loop that sent the request: nothing of an answer has been read.
            self.cut()
        return None

    async def _send(self) -> None:
        client, exchange = self._client, self.exchange
        body = client.body(exchange.ask)
        try:
            self._connection = await Connection.open(client.url)
        except OSError as error:
            raise ExchangeError(ErrorKind.CONNECT_FAILED, str(error)) from error
        exchange.connected_at = time.monotonic()
        self._stop_if_cut()
        await self._connection.send(client.head(exchange.ask, len(body)), body)
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
                    if reader.token_at:
                        self._first_token.set()
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
        reader = AnswerReader(head.status_code, content_type.decode("latin-1").lower())
        self.exchange.token_at = reader.token_at
        return reader

    def _note_end(self, reader: AnswerReader) -> None:
        exchange = self.exchange
        exchange.finish_reason = reader.finish_reason
        exchange.prompt_tokens = reader.usage.get("prompt_tokens")
        exchange.completion_tokens = reader.usage.get("completion_tokens")
        exchange.text_sha256 = reader.text_sha256
        exchange.text, exchange.tokens, exchange.timings = reader.text, reader.tokens, reader.timings

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
            case ExchangeError(kind=ErrorKind.SUPERSEDED):
                exchange.outcome, exchange.error = Outcome.CANCELLED, error.kind
                exchange.detail = error.detail
            case ExchangeError():
                exchange.error, exchange.detail = error.kind, error.detail
            case TimeoutError():
                exchange.error = ErrorKind.TIMEOUT
            case h11.RemoteProtocolError() if self._connection is not None and not self._connection.at_eof:
                exchange.error, exchange.detail = ErrorKind.PROTOCOL_ERROR, str(error)
            case _:
                # How far the answer had come.
                lost = ErrorKind.DISCONNECTED if exchange.first_byte_at is None else ErrorKind.BROKEN_ANSWER
                exchange.error, exchange.detail = lost, str(error)
