"""HTTP servers in a thread whose answers are a test's."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

S = TypeVar("S", bound=ThreadingHTTPServer)


class Handler(BaseHTTPRequestHandler):
    """Reads and answers whole bodies, and logs nothing."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def reply(self, status: int, content: bytes = b"", **headers: str) -> None:
        """Answer; underscores in the names of headers stand for dashes."""
        self.send_response(status)
        for name, value in ({"content-length": str(len(content))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(server: S) -> Iterator[S]:
    """Serve in a thread as long as the block runs."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="stub server")
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
