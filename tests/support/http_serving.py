"""A world's application on a real socket, in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import uvicorn

from pyllmcancel.server.http.connections import Connections
from pyllmcancel.server.http.protocol import WatchfulProtocol
from tests.support.http_process import LIMIT
from tests.support.http_world import World


class Listening(uvicorn.Server):
    """Tells when it listens, and on which port."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()
        self.port = 0

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup()
        self.port = self.servers[0].sockets[0].getsockname()[1]
        self.listens.set()


@contextmanager
def serving(world: World, host: str = "127.0.0.1") -> Iterator[int]:
    """A real server of the world's application, in a thread; its port."""
    http: Any = partial(WatchfulProtocol, world.app.state.server.config.limits, Connections(100, 100))
    config = uvicorn.Config(world.app, host, 0, http=http, ws="none", log_config=None, lifespan="off")
    server = Listening(config)
    thread = threading.Thread(target=server.run, name="test-server")
    thread.start()
    try:
        assert server.listens.wait(LIMIT)
        yield server.port
    finally:
        world.gate.open()
        server.should_exit = True
        thread.join(LIMIT)
        assert not thread.is_alive()
        world.engine.close()
