"""Clients that stream long answers, and note how each of them ends."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from tests.support.http_process import COMPLETIONS, LIMIT, ServerProcess, fresh_id

FOREVER = 60_000  # tokens


@dataclass(slots=True)
class Client:
    """One stream. Written by its own thread; `ending` (a finish reason, or an error's code) is for after `ended`."""

    server: ServerProcess
    session: str
    max_tokens: int = FOREVER
    model: str | None = None
    id: str = field(default_factory=fresh_id)
    ending: str | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self, http: httpx.Client) -> None:
        body = {"prompt": f"def {self.session}(", "max_tokens": self.max_tokens, "stream": True}
        if self.model is not None:
            body["model"] = self.model
        headers = {"X-Request-Id": self.id, "X-Session-Id": self.session}
        try:
            with http.stream("POST", COMPLETIONS, json=body, headers=headers) as answer:
                for line in answer.iter_lines():
                    self._take(line)
        finally:
            self.ended.set()

    def _take(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            self.ending = event["error"]["code"]
        for choice in event.get("choices", ()):
            self.ending = choice["finish_reason"] or self.ending


class Load:
    """Clients at work until `stop`; each asks again when its answer has ended, if `again`."""

    def __init__(
        self, server: ServerProcess, sessions: list[str], *, max_tokens: int, again: bool, model: str | None = None
    ) -> None:
        self.server = server
        self.again = again
        self._stopping = threading.Event()
        self.clients = [Client(server, session, max_tokens, model) for session in sessions]
        self._threads = [threading.Thread(target=self._run, args=(client,)) for client in self.clients]
        for thread in self._threads:
            thread.start()
        for client in self.clients:
            self.server.wait_for(client.id, status=lambda status: status != "unknown")

    def _run(self, client: Client) -> None:
        with httpx.Client(base_url=self.server.url, timeout=None) as http:
            client.run(http)
            while self.again and not self._stopping.is_set():
                Client(self.server, client.session, client.max_tokens, client.model).run(http)

    def stop(self) -> None:
        self._stopping.set()
        for session in {client.session for client in self.clients}:
            self.server.http.post(f"/v1/sessions/{session}/cancel")
        for thread in self._threads:
            thread.join(LIMIT)


@contextmanager
def under_load(
    server: ServerProcess,
    sessions: list[str] | None = None,
    *,
    max_tokens: int = FOREVER,
    again: bool = False,
    model: str | None = None,
) -> Iterator[Load]:
    """Clients, one for each session; eight with a session of their own if unsaid. The server knows all of them."""
    load = Load(server, sessions or [f"client_{n}" for n in range(8)], max_tokens=max_tokens, again=again, model=model)
    try:
        yield load
    finally:
        load.stop()
