"""Makes requests of one server, and keeps its idle connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import h11

from pyllmcancel.bench.answer import ErrorKind, ExchangeError
from pyllmcancel.bench.call import Call
from pyllmcancel.bench.connection import Address, Connection
from pyllmcancel.bench.exchange import Ask, Exchange, Outcome, Target

__all__ = ["Ask", "Call", "Client", "Exchange", "Outcome", "Target"]


class Client:
    """Makes requests of one server, on connections of its own.

    Not thread-safe; for use in one event loop. `close` aborts idle connections.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.address = Address.of(target.url)
        self._idle: list[Connection] = []

    def start(self, ask: Ask) -> Call:
        """Begin a request; the call goes on by itself."""
        return Call(self, ask)

    async def ask(self, ask: Ask) -> Exchange:
        """Make a request, and wait for its end."""
        return await self.start(ask).ended()

    async def fetch(self, method: str, path: str, body: Any = None, *, within: float = 60.0) -> tuple[int, bytes]:
        """A request beside the load, on a connection that is used once: status and body.

        Raises
        ------
        ExchangeError
            If there is no answer.
        """
        try:
            async with asyncio.timeout(within):
                connection = await Connection.open(self.address)
                try:
                    content = b"" if body is None else json.dumps(body).encode()
                    await connection.send(self.request(method, path, content, keep=False), content)
                    return await read_all(connection)
                finally:
                    connection.abort()
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            raise ExchangeError(ErrorKind.CONNECT_FAILED, f"{method} {path}: {error or 'timed out'}") from error

    async def fetch_json(self, method: str, path: str, body: Any = None) -> Any:
        """As `fetch`; None if the server does not know the path, or answers something else than JSON."""
        status, content = await self.fetch(method, path, body)
        try:
            return json.loads(content) if status == 200 else None
        except ValueError:
            return None

    def take(self) -> Connection | None:
        """An open connection that was used before; those that the server has closed meanwhile are dropped."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
            connection.abort()
        return None

    def give_back(self, connection: Connection) -> None:
        if self.target.keep_alive and connection.reset_for_next():
            self._idle.append(connection)
        else:
            connection.abort()

    def request(
        self, method: str, path: str, body: bytes, *, keep: bool | None = None, more: Mapping[str, str] | None = None
    ) -> h11.Request:
        """The head of a request."""
        headers = {"Host": self.address.authority, "Accept": "*/*", "User-Agent": "pyllmcancel-bench"}
        if body:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        if self.target.api_key is not None:
            headers["Authorization"] = f"Bearer {self.target.api_key}"
        if not (self.target.keep_alive if keep is None else keep):
            headers["Connection"] = "close"
        headers |= more or {}
        return h11.Request(method=method, target=self.address.prefix + path, headers=list(headers.items()))

    def body(self, ask: Ask) -> bytes:
        """The body of a generation request; greedy, so that answers can be compared."""
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
        return json.dumps(fields | dict(target.extra)).encode()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()


async def read_all(connection: Connection) -> tuple[int, bytes]:
    """Status and body of an answer."""
    status, content = 0, bytearray()
    while True:
        match await connection.receive():
            case h11.Response(status_code=code):
                status = code
            case h11.Data(data=data):
                content += data
            case h11.EndOfMessage():
                return status, bytes(content)
            case h11.ConnectionClosed():
                raise ConnectionError("closed before the answer was complete")
