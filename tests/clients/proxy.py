"""A proxy that keeps what a client sends, adds what `steering` says, and leaves when the client leaves."""

import json
import select
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.clients.steering import Stage, stage_of, steered

# Returns the body that the server gets, by the path and the body of the client.
Steering = Callable[[str, dict[str, Any]], dict[str, Any]]
OURS = {"host", "connection", "content-length", "x-request-id"}


@dataclass(slots=True)
class Exchange:
    """A request of a client, and what came back. Written by the thread of its connection."""

    id: str
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    answer: bytearray = field(default_factory=bytearray)
    over: threading.Event = field(default_factory=threading.Event)  # one side has closed its connection

    @property
    def body(self) -> dict[str, Any] | None:
        """As the client sent it; None if it is no object."""
        with suppress(ValueError):
            body = json.loads(self.raw)
            return body if isinstance(body, dict) else None
        return None

    @property
    def stage(self) -> Stage:
        return Stage.FREE if self.body is None else stage_of(self.body)

    @property
    def status(self) -> int | None:
        line = bytes(self.answer).split(b"\r\n", 1)[0].split()
        return int(line[1]) if len(line) > 1 else None

    @property
    def n_events(self) -> int:
        return self.answer.count(b"data: ")


class RecordingProxy(AbstractContextManager["RecordingProxy"]):
    """Before the server on `port`. Every request gets an id, by which the server's log can be searched."""

    def __init__(self, port: int, name: str, steering: Steering = steered) -> None:
        self.upstream = port
        self.steering = steering
        self.exchanges: list[Exchange] = []
        self._name = name
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Connection,), {"proxy": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="proxy")
        self._thread.start()

    def begin(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Exchange:
        with self._lock:
            request_id = headers.get("x-request-id", f"{self._name}-{len(self.exchanges) + 1:03}")
            exchange = Exchange(request_id, method, path, headers, raw)
            self.exchanges.append(exchange)
        return exchange

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Connection(BaseHTTPRequestHandler):
    """One request; the client connects anew for its next."""

    proxy: RecordingProxy

    def forward(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        exchange = self.proxy.begin(
            self.command, self.path, headers, self.rfile.read(int(headers.get("content-length", 0)))
        )
        with socket.create_connection(("127.0.0.1", self.proxy.upstream)) as server, suppress(ConnectionError):
            server.sendall(as_bytes(exchange, self.proxy.steering))
            self._relay(server, exchange)
        exchange.over.set()
        self.close_connection = True

    def _relay(self, server: socket.socket, exchange: Exchange) -> None:
        while True:
            ready, _, _ = select.select([self.connection, server], [], [])
            if self.connection in ready and not self.connection.recv(65_536):
                return
            if server in ready:
                if not (data := server.recv(65_536)):
                    return
                exchange.answer += data
                self.connection.sendall(data)

    do_GET = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def as_bytes(exchange: Exchange, steering: Steering) -> bytes:
    """The request that the server gets."""
    body, path = exchange.body, exchange.path.split("?")[0]
    content = exchange.raw if body is None else json.dumps(steering(path, body)).encode()
    headers = {name: value for name, value in exchange.headers.items() if name not in OURS}
    headers |= {"host": "localhost", "connection": "close", "x-request-id": exchange.id}
    if content:
        headers["content-length"] = str(len(content))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{exchange.method} {exchange.path} HTTP/1.1\r\n{lines}\r\n".encode() + content
