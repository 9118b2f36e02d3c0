"""A server in a process of its own, and clients that are nothing but a socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.forked import ForkedServer, zygote
from tests.support.threads import N_THREADS

T = TypeVar("T")

# Seconds for anything that takes a moment; with a sanitizer it takes ten.
LIMIT = 300.0 if "PYLLMCANCEL_SANITIZED" in os.environ else 60.0
START_LIMIT = 150.0  # for what takes seconds of a processor: imports, and the processes that are started beside
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
WAYS_TO_LEAVE = ("reset", "close", "half-close")

# Seconds from a client's leaving to the end of its computation. It takes a few milliseconds; a shared machine may be
# busy elsewhere meanwhile, but a server that does not notice takes many seconds here.
SOON = 15.0

# Becomes the command that follows, with SIGINT as it is at a prompt: background jobs of a script ignore it, and so does
# all that they start.
WITH_SIGINT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


def until(read: Callable[[], T], accept: Callable[[T], object], seconds: float = LIMIT) -> T:
    """Ask again and again until the answer is accepted; for events of the operating system, which cannot be awaited.

    The longer it takes the less often: who asks all the time takes the processor from what is waited for.
    """
    began = time.monotonic()
    while not accept(found := read()):
        waited = time.monotonic() - began
        if waited > seconds:
            raise TimeoutError(f"after {seconds} s it is still {found!r}")
        time.sleep(min(max(0.005, waited / 10), 0.05))
    return found


class ServerProcess(AbstractContextManager["ServerProcess"]):
    """``pyllmcancel serve`` with the tests' threads, on a port that it chose itself and that its log tells.

    It is forked from a process that has imported everything (`zygote`), where the other parameters allow that.
    """

    def __init__(
        self,
        *options: str,
        environment: dict[str, str] | None = None,
        files: int | None = None,  # most open ones, as by `ulimit -n`
        program: str | None = None,  # Python that calls the command in the end; it finds the same sys.argv
        forked: bool = True,
        **popen: Any,
    ) -> None:
        options = ("--port", "0", "--threads", str(N_THREADS), *options)
        environment = environment or {}
        self._process: subprocess.Popen[str] | ForkedServer
        if forked and files is None and program is None and not popen and all(map(is_read_late, environment)):
            self._process = ForkedServer(zygote(), options, os.environ | environment)
        else:
            command = [sys.executable, *(["-m", "pyllmcancel"] if program is None else ["-c", program])]
            self._process = self._executed([*command, "serve", *options], environment, files, popen)
        self.pid = self._process.pid
        self._log: list[str] = []
        self._changed = threading.Condition()
        self._closed = False
        self._reader = threading.Thread(target=self._read_log, name="server log")
        self._reader.start()

    @staticmethod
    def _executed(
        command: list[str], environment: dict[str, str], files: int | None, popen: dict[str, Any]
    ) -> subprocess.Popen[str]:
        if files is not None:
            command = ["/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
        launch, env = [sys.executable, "-I", "-S", "-c", WITH_SIGINT], os.environ | environment
        return subprocess.Popen([*launch, *command], stderr=subprocess.PIPE, text=True, env=env, **popen)

    def _read_log(self) -> None:
        for line in self._process.stderr:
            with self._changed:
                self._log.append(line)
                self._changed.notify_all()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def log(self) -> str:
        with self._changed:
            return "".join(self._log)

    def wait_for_log(self, pattern: str, seconds: float = LIMIT) -> re.Match[str]:
        """Wait until a line of the log matches."""
        compiled = re.compile(pattern)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(map(compiled.search, self._log)), seconds)
            found = next(filter(None, map(compiled.search, self._log)), None)
        assert found is not None, f"no line matches {pattern!r} in\n{self.log}"
        return found

    def started(self) -> ServerProcess:
        self.listening()
        try:
            until(self._is_healthy, bool, START_LIMIT)
        except httpx.TransportError as error:
            raise AssertionError(f"the server ended:\n{self.log}") from error
        return self

    def _is_healthy(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.RemoteProtocolError:  # a server with short limits has closed the connection since the last look
            return False

    def listening(self) -> None:
        found = self.wait_for_log(r"running on http://([\d.]+):(\d+)", START_LIMIT)
        self.host, self.port = found[1], int(found[2])
        self.url = f"http://{self.host}:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=LIMIT)

    # -- looking ------------------------------------------------------------------------------------------------------

    def request(self, request_id: str) -> dict[str, Any]:
        """How a request stands; ``{"status": "unknown"}`` before it has arrived."""
        answer = self.http.get(f"/v1/requests/{request_id}")
        return answer.json() if answer.status_code == 200 else {"status": "unknown"}

    def wait_for(self, request_id: str, seconds: float = LIMIT, **expected: Any) -> dict[str, Any]:
        """Wait until a request stands so; a callable is a condition on the value."""

        def matches(seen: dict[str, Any]) -> bool:
            return all(
                value(seen[name]) if callable(value) and name in seen else seen.get(name) == value
                for name, value in expected.items()
            )

        return until(lambda: self.request(request_id), matches, seconds)

    def replicas(self) -> dict[str, str]:
        """Return the states of all models' processes, by name."""
        entries = self.http.get("/v1/models").json()["data"]
        return {one["name"]: one["status"]["value"] for entry in entries for one in entry["replicas"]}

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def cancel(self, request_id: str) -> dict[str, Any]:
        return self.http.post(f"/v1/requests/{request_id}/cancel").json()

    def wait_idle(self, seconds: float = LIMIT) -> None:
        until(lambda: self.http.get("/health").json(), lambda seen: seen["waiting"] == seen["running"] == 0, seconds)

    # -- ending -------------------------------------------------------------------------------------------------------

    def signal(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Send a signal; returns a time at which it had not come yet."""
        began = time.monotonic()
        self._process.send_signal(number)
        return began

    def wait(self, seconds: float = LIMIT) -> int:
        """Wait until the process is gone; its status."""
        status = self._process.wait(seconds)
        self._reader.join()
        return status

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "http"):
            self.http.close()
        if self._process.poll() is None:
            self._process.kill()
        self.wait()
        self._process.stderr.close()
        if "PYLLMCANCEL_SANITIZED" in os.environ:
            sys.stderr.write(self.log)  # tools/sanitize.py looks there for reports


def is_read_late(variable: str) -> bool:
    """Return whether an environment variable has its effect in a process that has imported everything already."""
    return variable.startswith(("PYLLMCANCEL_", "OTEL_", "XDG_")) or variable == "HOME"


class RawClient(AbstractContextManager["RawClient"]):
    """A connection whose every byte is the test's."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", source: str = "", receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if source:
            self.socket.bind((source, 0))
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(LIMIT)
        self.socket.connect((host, port))

    def post(self, path: str = COMPLETIONS, **fields: Any) -> str:
        """Send a request; its id."""
        request_id = fresh_id()
        self.socket.sendall(post_bytes(request_id, path, **fields))
        return request_id

    def answer(self) -> HTTPResponse:
        """Read the next answer's head; its body can be read from what is returned."""
        response = HTTPResponse(self.socket)
        response.begin()
        return response

    def leave(self, way: str) -> float:
        """Leave in one of `WAYS_TO_LEAVE`; the time at which that began."""
        left_at = time.time()
        match way:
            case "reset":  # the server gets a RST
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.socket.close()
            case "close":  # a FIN, or a RST if something was left unread
                self.socket.close()
            case "half-close":  # nothing more will be sent, but everything read
                self.socket.shutdown(socket.SHUT_WR)
        return left_at

    def is_closed_by_server(self) -> bool:
        """Return whether the server has closed the connection; waits for it."""
        with suppress(ConnectionResetError):
            while self.socket.recv(65_536):
                pass
        return True

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def fresh_id() -> str:
    """An id that no other test has used: servers are shared, and remember."""
    return f"test-{uuid.uuid4()}"


def post_bytes(request_id: str, path: str = COMPLETIONS, **fields: Any) -> bytes:
    """A request as it goes over the wire; greedy and long unless `fields` say otherwise."""
    asked = {"messages": [{"role": "user", "content": "hello"}]} if path == CHAT else {"prompt": "hello"}
    body = json.dumps(asked | {"temperature": 0, "max_tokens": 30_000} | fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def assert_ends_soon(server: ServerProcess, request_id: str, left_at: float, phase: str) -> None:
    """A client that left at `left_at` was noticed, in this phase."""
    seen = server.wait_for(request_id, status="cancelled")
    assert (seen["cancel_reason"], seen["phase"]) == ("disconnect", phase)
    # By the server's own clock, which is ours: how long it took us to ask does not count.
    assert seen["created"] + seen["seconds"] - left_at < SOON


def events(response: HTTPResponse) -> list[str]:
    """Read a stream to its end: the data of its events."""
    blocks = response.read().decode().split("\n\n")
    return [block.removeprefix("data: ") for block in blocks if block]


def long_prompt(n_tokens: int = 30_000) -> list[int]:
    """Tokens of a prompt that takes seconds to compute, and shares no beginning with others of other lengths."""
    return [(n_tokens + i * 7) % 1000 for i in range(n_tokens)]
