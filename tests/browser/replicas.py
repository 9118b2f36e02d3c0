"""Two servers that are each other's peers, for the page of the first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.clients.model import serving
from tests.support.http_process import ServerProcess, until
from tests.support.proxies import free_port

NAMES = ("north", "south")


@contextmanager
def serving_two(folder: Path, *options: str) -> Iterator[list[ServerProcess]]:
    """They know each other; `options` are both's."""
    ports = [free_port() for _ in NAMES]
    peers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        servers = []
        for name, port in zip(NAMES, ports, strict=True):
            own = folder / name
            own.mkdir()
            given = ("--port", str(port), "--replica", name, "--peers", peers)
            servers.append(stack.enter_context(serving(own, *given, *options)))
        for server in servers:
            server.wait_for_log("is connected: ")  # a peer that was never reached is none yet
            until(lambda server=server: server.http.get("/v1/requests").json(), lambda seen: "unreached" not in seen)  # type: ignore[misc]
        yield servers
