"""One HTTP exchange with an ASGI application, without sockets: the test plays the server and its client.

What a server like uvicorn does is done here in the open: the body arrives when the test says so, ``send`` returns when
the client reads, and ``receive`` tells of a client that has left, or whose answer is complete.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

LIMIT = 60.0  # seconds; nothing here takes more than milliseconds, so a longer wait is a hang


async def until_healthy(app: ASGIApp) -> None:
    """Wait until the application serves, as its clients do: by asking."""
    async with asyncio.timeout(LIMIT):
        while (await Exchange(app, "GET", "/health").end()).status != 200:  # noqa: ASYNC110 - a client has no event
            await asyncio.sleep(0.005)


class Exchange:
    """A request that is under way."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        *,
        body: bytes | None = b"",
        headers: dict[str, str] | None = None,
        client: tuple[str, int] | None = ("127.0.0.1", 50_000),
    ) -> None:
        self.status = 0  # before the headers
        self.headers: dict[str, str] = {}
        self.complete = False
        self.blocked = asyncio.Event()  # while the application waits in `send` for a client that does not read
        self._error: Exception | None = None
        self._pieces: list[bytes] = []
        self._n_read = 0  # complete server-sent events that `next_event` has handed out
        self._inbox: asyncio.Queue[Message] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._progress = asyncio.Condition()
        if body is not None:
            self.body_arrives(body)
        scope = http_scope(method, path, headers or {}, client)
        self.task = asyncio.create_task(self._run(app, scope), name=f"{method} {path}")

    # -- the client's side --------------------------------------------------------------------------------------------

    def body_arrives(self, body: bytes, *, more: bool = False) -> None:
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        self._gone.set()
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def left(self) -> Self:
        """Leave, and wait until the application has returned."""
        self.leave()
        return await self.end()

    def stop_reading(self) -> None:
        """From now on ``send`` blocks, as it does when the client's and our buffers are full."""
        self._reading.clear()

    def read_on(self) -> None:
        self._reading.set()

    def fail_sends(self, error: Exception) -> None:
        """From now on ``send`` raises, as some servers' do when a client is gone."""
        self._error = error

    async def until_blocked(self) -> None:
        """Wait until the application waits in ``send``."""
        async with asyncio.timeout(LIMIT):
            await self.blocked.wait()

    async def until_headers(self) -> Self:
        return await self.until(lambda: self.status != 0)

    async def until_body(self, piece: bytes) -> Self:
        """Wait until the answer's body holds this."""
        return await self.until(lambda: piece in self.body)

    async def until(self, accept: Callable[[], object]) -> Self:
        """Wait until the answer is as it should be."""
        async with asyncio.timeout(LIMIT), self._progress:
            await self._progress.wait_for(lambda: accept() or self.task.done())
        if not accept():
            self.task.result()  # raises what the application raised
            raise AssertionError(f"the application returned early: status {self.status}, {self.body!r}")
        return self

    async def next_event(self) -> str | None:
        """The data of the next server-sent event; None after the last."""
        await self.until(lambda: self.complete or len(self.events) > self._n_read)
        if len(self.events) == self._n_read:
            return None
        self._n_read += 1
        return self.events[self._n_read - 1]

    async def next_json(self) -> dict[str, Any]:
        event = await self.next_event()
        assert event is not None, "the stream has ended"
        found: dict[str, Any] = json.loads(event)
        return found

    async def end(self) -> Self:
        async with asyncio.timeout(LIMIT):
            await asyncio.shield(self.task)
        return self

    @property
    def body(self) -> bytes:
        return b"".join(self._pieces)

    @property
    def events(self) -> list[str]:
        """The data of all complete server-sent events so far; comments are skipped, as clients do."""
        blocks = [block for block in self.body.decode().split("\n\n")[:-1] if not block.startswith(":")]
        return [data_of(block) for block in blocks]

    def named_events(self) -> list[Any]:
        """All complete events of a stream that names them: each by the type in its data."""
        found = []
        for block in self.body.decode().split("\n\n")[:-1]:
            name, data = block.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}", block
        return found

    def json_events(self) -> list[Any]:
        """All complete events but the last ``[DONE]``."""
        return [json.loads(event) for event in self.events if event != "[DONE]"]

    @property
    def refusal(self) -> tuple[int, str | None]:
        """The status and the error's ``param``."""
        return self.status, self.json()["error"]["param"]

    @property
    def failure(self) -> tuple[int, str | int]:
        """The status and the error's ``code``."""
        return self.status, self.json()["error"]["code"]

    def json(self) -> Any:
        assert self.complete, "the answer is not complete"
        return json.loads(self.body)

    # -- the server's side --------------------------------------------------------------------------------------------

    async def _run(self, app: ASGIApp, scope: Any) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            await self._tell()

    async def _receive(self) -> Message:
        message = await self._inbox.get()
        if message["type"] == "http.disconnect":
            self._inbox.put_nowait(message)  # it stays true
        return message

    async def _send(self, message: Message) -> None:
        if not self._reading.is_set():
            self.blocked.set()
            await self._reading.wait()
            self.blocked.clear()
        if self._error is not None:
            raise self._error
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            assert not self.status, "an answer begins once"
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            assert self.status, "headers come first"
            assert not self.complete, "nothing comes after the end"
            self._pieces.append(message.get("body", b""))
            self.complete = not message.get("more_body", False)
            if self.complete:
                self._inbox.put_nowait({"type": "http.disconnect"})
        await self._tell()

    async def _tell(self) -> None:
        async with self._progress:
            self._progress.notify_all()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """A client that is still there leaves, as at the end of a process."""
        if not self.task.done():
            self.leave()
            self.read_on()
            await self.end()


class Clients:
    """The exchanges with an application that a test has begun; those still open at the end leave."""

    app: ASGIApp
    exchanges: list[Exchange]

    def begin(self, method: str, path: str, body: Any = None, **options: Any) -> Exchange:
        """Begin an exchange; a `body` that is not bytes is sent as JSON. With ``content=None`` it comes later."""
        headers = {"content-type": "application/json"} | (options.pop("headers", None) or {})
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        exchange = Exchange(self.app, method, path, body=options.pop("content", content), headers=headers, **options)
        self.exchanges.append(exchange)
        return exchange

    async def get(self, path: str, **options: Any) -> Exchange:
        return await self.begin("GET", path, **options).end()

    async def post(self, path: str, body: Any = None, **options: Any) -> Exchange:
        return await self.begin("POST", path, body, **options).end()

    async def leave_all(self) -> None:
        for exchange in self.exchanges:
            async with exchange:
                pass


def data_of(block: str) -> str:
    """Return the data of one server-sent event, whose name, if it has one, is the type that its data has."""
    *name, data = block.split("\n")
    assert data.startswith("data: "), block
    data = data.removeprefix("data: ")
    if name:
        assert name == [f"event: {json.loads(data)['type']}"], block
    return data


def http_scope(method: str, path: str, headers: dict[str, str], client: tuple[str, int] | None) -> dict[str, Any]:
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
        "client": client,
        "server": ("127.0.0.1", 8000),
    }
