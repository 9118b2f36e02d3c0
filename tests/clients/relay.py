"""A relay between an agent and several servers: a script answers it, and each server is asked the same."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.clients.scripted_model import ScriptedModel
from tests.support.http_process import ServerProcess

PATIENCE = 300.0  # seconds for the beginning of an answer


class Relay(AbstractContextManager["Relay"]):
    """Answers a client by the script, after each server has been asked the same.

    Attributes
    ----------
    statuses
        How often each server answered with which status. Written by the threads of connections, under `lock`.
    """

    def __init__(self, servers: dict[str, ServerProcess], record: Path | None) -> None:
        self.servers, self.record = servers, record
        self.model = ScriptedModel()
        self.lock = threading.Lock()
        self.statuses: dict[str, Counter[int]] = {name: Counter() for name in servers}
        self.refusals: list[str] = []
        self.n_requests = 0
        self.n_references = 0  # requests with a reference to a tool that was searched for
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Asked,), {"relay": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="relay")
        self._thread.start()

    def ask(self, path: str, headers: dict[str, str], content: bytes) -> None:
        """Have every server begin to answer, and leave."""
        self.n_requests += 1
        self.n_references += b'"tool_reference"' in content
        if self.record is not None:
            self.record.mkdir(parents=True, exist_ok=True)
            (self.record / f"{self.n_requests:03}.json").write_bytes(content)
        for name, server in self.servers.items():
            connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
            connection.request("POST", path, content, headers)
            response = connection.getresponse()
            self.statuses[name][response.status] += 1
            if response.status != 200:
                self.refusals.append(f"{name}: {path} {response.status} {response.read(300).decode(errors='replace')}")
            connection.close()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Asked(BaseHTTPRequestHandler):
    """One request of the client's."""

    relay: Relay

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        headers = {"content-type": "application/json"}
        with self.relay.lock:
            self.relay.ask(self.path, headers, content)
            answer, kind = self._answer(path, json.loads(content))
        self._send(200, kind, answer)

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[bytes, str]:
        if path.endswith("/count_tokens"):
            return b'{"input_tokens": 1}', "application/json"
        return self.relay.model.answer(path, body), "text/event-stream"

    def do_GET(self) -> None:
        self._send(200, "application/json", b'{"object": "list", "data": []}')

    do_HEAD = do_GET  # noqa: N815

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass
