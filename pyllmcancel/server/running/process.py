"""Running the application under uvicorn, and ending it in the right order.

At SIGTERM or SIGINT the engine starts to drain at once, while uvicorn still waits for its connections: they end because
the engine ends their requests, each with its proper answer. uvicorn alone would wait for the connections first, and the
last stream would decide how long the process lives.

When the engine dies all requests have ended, and the server goes the same way, so that a supervisor starts another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from fastapi import FastAPI

from pyllmcancel.engine.engine import Engine
from pyllmcancel.engine.loading import Loading
from pyllmcancel.front.remotes import Registering
from pyllmcancel.server.app import create_app
from pyllmcancel.server.config import Certificate, ServerConfig
from pyllmcancel.server.http.connections import Connections
from pyllmcancel.server.http.listening import Listener, is_unix, url_of
from pyllmcancel.server.http.protocol import uvicorn_config
from pyllmcancel.server.responses.storage.store import Store
from pyllmcancel.server.running.first_steps import example_of, first_steps
from pyllmcancel.server.running.key_rotation import Hangups
from pyllmcancel.server.running.metrics import EngineMetrics
from pyllmcancel.server.running.supervised import SupervisedServer
from pyllmcancel.server.state import ServerState

if TYPE_CHECKING:
    from pyllmcancel.server.running.tracing import Tracing  # needs an extra

logger = logging.getLogger("pyllmcancel.server")
uvicorn_logger = logging.getLogger("uvicorn.error")

# After the drain every request is cancelled and answered. A connection that is still open then belongs to a client that
# does not read, and is closed. A second grace later uvicorn cancels the remaining tasks.
GRACE_SECONDS = 0.5
# The time after that, for a process whose engine has died: it may lack more, for example memory.
LAST_RESORT_SECONDS = 10.0


class Server(SupervisedServer):
    """uvicorn, with the engine's drain beside its own."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, connections: Connections, hangups: Hangups | None) -> None:
        self._state: ServerState = app.state.server
        super().__init__(config, connections, hangups, self._state.keys, lambda: self._state.health()["status"])
        self._state.on_load_failure = self._give_up
        self._state.on_stuck_load = self._end_by_the_signal
        self._state.on_engine_death = self._end_in_any_case
        self._registering: Registering | None = None
        self._drain = self._state.config.drain
        self._delay = self._state.config.drain_delay
        self.exit_status = 0

    def _give_up(self) -> None:
        """End, for the reason that the log has just given in its last line."""
        uvicorn_logger.setLevel(logging.WARNING)
        self.exit_status = 1
        self.should_exit = True

    def _end_by_the_signal(self) -> None:
        """End at once, with the status that the signal has in any case: no request has been served yet."""
        logger.info("the load is broken off, and the process ends")
        if set(self._captured_signals) == {signal.SIGINT}:
            os._exit(128 + signal.SIGINT)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)

    def _end_in_any_case(self) -> None:
        """Called by the engine's thread."""
        # An alarm needs neither memory, nor the GIL, nor an event loop.
        signal.setitimer(signal.ITIMER_REAL, self._drain + 2 * GRACE_SECONDS + LAST_RESORT_SECONDS)
        self._give_up()
        self.make_haste()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.on_ready = partial(self._on_ready, sockets or ())
        await super().startup(sockets)

    def announce(self, listeners: Sequence[socket.socket]) -> None:
        for listener in listeners if self._state.config.greets else ():
            logger.info("running on %s", url_of(listener, secure=self.config.is_ssl))

    def _on_ready(self, listeners: Sequence[socket.socket], engine: Engine) -> None:
        self.supervision.look()
        listeners = [one for one in listeners if not is_unix(one)]
        front, key = self._state.config.front, self._state.config.worker_key
        if front is not None and key is not None and listeners:
            port = listeners[0].getsockname()[1]
            self._registering = Registering(front, key, port=port, secure=self.config.is_ssl)
        if not (self._state.config.greets and listeners):
            return
        example = example_of(self._state)
        for line in first_steps(listeners, self._state.config, secure=self.config.is_ssl, example=example):
            logger.info("%s", line)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._registering is not None:
            await self._registering.leave()
        self.supervision.stopping()
        uvicorn_logger.addFilter(says_what_it_waits_for)
        leaves = self._delay > 0 and not self.force_exit and self._state.health()["status"] == "ok"
        if leaves:
            await self._leave()
        if self.exit_status == 0:  # else the reason of the end is the log's last line
            logger.info("%s", self._state.remaining(0.0 if self.force_exit else self._drain))
        closing = asyncio.create_task(self._state.close(0.0 if self.force_exit else self._drain))
        if leaves:
            # Other servers can still reach the requests that are computed here.
            await self._unless_in_a_hurry(until_done(closing))
        self.connections.close()
        closing.add_done_callback(self._end_blocked_soon)
        # Requests without a connection are drained, too: uvicorn waits for its tasks, unless a second signal came.
        drained = asyncio.create_task(until_done(closing))
        self.server_state.tasks.add(drained)
        drained.add_done_callback(self.server_state.tasks.discard)
        await super().shutdown(sockets)
        if self.force_exit:
            # The engine may still be draining, and now cancels the rest. Then uvicorn's omitted steps follow.
            await self._state.close(0.0)
            await self._last_words()
            await self.lifespan.shutdown()
        await closing
        self.supervision.stop()

    async def _leave(self) -> None:
        """Serve for a while more; `/health` reports the drain, so that balancers send new requests elsewhere."""
        logger.info("draining: /health reports it, and the port stays open for %g s", self._delay)
        self._state.leaving = True
        await self._unless_in_a_hurry(asyncio.sleep(self._delay))

    async def _unless_in_a_hurry(self, wait: Coroutine[Any, Any, None]) -> None:
        """Wait, but not after a second signal."""
        tasks = [asyncio.create_task(wait), asyncio.create_task(self.hurry.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    async def _last_words(self) -> None:
        """Let answers end: a task that is cancelled with the event loop, in whatever it does, leaves a traceback."""
        self.connections.end_blocked()
        if tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks, timeout=GRACE_SECONDS)

    def _end_blocked_soon(self, _: asyncio.Task[None]) -> None:
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self.connections.end_blocked)


def says_what_it_waits_for(record: logging.LogRecord) -> bool:
    """Drop uvicorn's lines: the connections and tasks that they name are those of the requests in our line."""
    return not str(record.msg).startswith("Waiting for ")


async def until_done(task: asyncio.Task[None]) -> None:
    """Wait; cancelling this does not cancel `task`."""
    await asyncio.shield(task)


def serve(
    config: ServerConfig,
    listeners: list[Listener],
    *,
    certificate: Certificate | None,
    metrics: EngineMetrics,
    loading: Loading,
    store: Store | None,
    tracing: Tracing | None,
    hangups: Hangups | None = None,
) -> int:
    """Serve until a signal ends it; returns the exit status, 1 when the model could not be loaded or the engine died.

    SIGINT becomes KeyboardInterrupt. `metrics`, `loading`, `store` and `tracing` are as for `create_app`. Without
    `hangups` SIGHUP ends the process.
    """
    connections = Connections(*config.limits.connections(), proxies=config.trusted_proxies)
    app = create_app(config, metrics=metrics, loading=loading, store=store, tracing=tracing)
    settings = uvicorn_config(app, config, connections, certificate, patience=config.drain + 2 * GRACE_SECONDS)
    server = Server(settings, app, connections, hangups)
    level = uvicorn_logger.level
    try:
        server.serve_until_signal(listeners)
    finally:
        uvicorn_logger.setLevel(level)
        uvicorn_logger.removeFilter(says_what_it_waits_for)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return server.exit_status
