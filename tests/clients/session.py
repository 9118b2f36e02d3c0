"""A client's session with the server: through a proxy of its own, in folders of its own."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from tests.clients.packages import Environment
from tests.clients.proxy import Exchange, RecordingProxy, Steering
from tests.clients.steering import LONG_PROMPT, Stage, steered
from tests.support.http_process import ServerProcess, until

PATIENCE = 500.0  # seconds for an answer: an agent's first prompt has 30,000 tokens
GRACE = 10.0  # seconds for what ends by SIGTERM
KEPT = ("PATH", "LD_LIBRARY_PATH", "SSL_CERT_FILE")


class Session(AbstractContextManager["Session"]):
    """`home` and `project` are empty, and its environment has nothing of ours but the path of programs."""

    def __init__(
        self, name: str, packages: Environment, server: ServerProcess, folder: Path, steering: Steering = steered
    ) -> None:
        self.packages, self.server = packages, server
        self.home, self.project = folder / "home", folder / "project"
        self.home.mkdir()
        self.project.mkdir()
        self.proxy = RecordingProxy(server.port, name, steering)

    @property
    def url(self) -> str:
        return self.proxy.url

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        return kept | {"HOME": str(self.home), "NO_PROXY": "127.0.0.1"} | more

    def until_answered(self) -> None:
        """Wait until the client has sent its tool's result to the server, and has the answer."""
        exchange = self.until_sent(lambda exchange: exchange.stage is Stage.ANSWER)
        self.server.wait_for(exchange.id, PATIENCE, status="finished")

    def until_generating(self) -> Exchange:
        exchange = self.until_sent(is_long_turn)
        self.server.wait_for(exchange.id, PATIENCE, completion_tokens=lambda n: n > 5)
        return exchange

    def until_stopped(self, exchange: Exchange) -> None:
        self.server.wait_for(exchange.id, status="cancelled")

    def until_sent(self, accept: Callable[[Exchange], bool]) -> Exchange:
        """Wait until the client has sent a request like this; return the last such."""

        def found() -> Exchange | None:
            return next(filter(accept, reversed(self.proxy.exchanges)), None)

        exchange = until(found, lambda found: found is not None, PATIENCE)
        assert exchange is not None
        return exchange

    def __exit__(self, *_: object) -> None:
        self.proxy.__exit__()
        end_processes(self.home)


def end_processes(home: Path) -> None:
    """End what a client has left in the background: Codex has a daemon that goes on with a turn without its window.

    A daemon may take its time, and its supervisor may start another one meanwhile.
    """
    send(signal.SIGTERM, processes_of(home))
    with suppress(TimeoutError):
        until(lambda: processes_of(home), lambda left: not left, GRACE)
    until(lambda: send(signal.SIGKILL, processes_of(home)), lambda sent: not sent)


def send(number: signal.Signals, processes: list[int]) -> list[int]:
    """Send a signal to these processes; return them."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
    return processes


def processes_of(home: Path) -> list[int]:
    """Return the processes whose home this is, but those that have ended and whose parents have not noticed yet."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # gone, or another user's
            if f"HOME={home}".encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def is_long_turn(exchange: Exchange) -> bool:
    body = exchange.body or {}
    conversation = body.get("messages", body.get("input", []))
    return exchange.stage is Stage.FREE and LONG_PROMPT in json.dumps(conversation)
