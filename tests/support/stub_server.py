"""HTTP servers in a thread whose answers are a test's."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


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
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


class StubServer(ThreadingHTTPServer):
    """A server that serves from the beginning, until it is closed or its block ends."""

    def __init__(self, handler: type[Handler], host: str = "127.0.0.1") -> None:
        super().__init__((host, 0), handler)
        self.url = f"http://{host}:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), name="stub server")
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join()
            self.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
