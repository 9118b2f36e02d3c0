"""The base of all servers: reports to a supervisor, hidden garbage, and a second signal that ends a drain."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Literal

import uvicorn

from pyllmcancel.server.http.listening import Listener, quiet_about_files
from pyllmcancel.server.http.workers import post
from pyllmcancel.server.limits import GIL_SECONDS
from pyllmcancel.server.timer import Timer

if TYPE_CHECKING:
    from pyllmcancel.server.http.api_keys import KeyRing
    from pyllmcancel.server.http.connections import Connections
    from pyllmcancel.server.running.key_rotation import Hangups

logger = logging.getLogger("pyllmcancel.server")

State = Literal["ok", "loading", "failed", "stalled", "draining"]  # the words of `/health`


class Supervision:
    """Reports that the server is ready, alive, or about to end. Used by the event loop only; never raises.

    The `address` is the supervisor's datagram socket, a path or an abstract name after ``@``. A sign of life is sent
    each `beat_every` seconds, if it wants any, but not while the `state`, as ``/health`` has it, is stalled or failed,
    nor while the event loop is blocked.
    """

    def __init__(self, address: str | None, beat_every: float | None, state: Callable[[], State]) -> None:
        self._address = address
        self._beat_every = beat_every
        self._state = state
        self._listens = False
        self._reported_ready = False
        self._timer = Timer()

    @classmethod
    def of(cls, environment: Mapping[str, str], state: Callable[[], State]) -> Supervision:
        """Make one by systemd's variables. Sockets that are not AF_UNIX, as in virtual machines, are ignored."""
        address = environment.get("NOTIFY_SOCKET", "")
        return cls(address if address.startswith(("/", "@")) else None, beat_interval(environment), state)

    def start(self) -> None:
        """Note that the port listens. From now on `look` reports, and signs of life are sent."""
        self._listens = True
        self._come()

    def look(self) -> None:
        """Report once that the server can serve, and each time that it lives."""
        if not self._listens:
            return
        state = self._state()
        news = []
        if state == "ok" and not self._reported_ready:
            self._reported_ready = True
            news += ["READY=1", "STATUS=serving"]
        if state in ("ok", "loading", "draining") and self._beat_every is not None:
            news.append("WATCHDOG=1")
        self._report(*news)

    def stopping(self) -> None:
        """Report that the server drains. Signs of life continue until `stop`."""
        self._report("STOPPING=1", "STATUS=draining")

    def stop(self) -> None:
        """Idempotent."""
        self._listens = False
        self._timer.stop()

    def _come(self) -> None:
        self.look()
        if self._beat_every is not None:
            self._timer.start(self._beat_every, self._come)

    def _report(self, *news: str) -> None:
        if self._address is None or not news:
            return
        # An abstract name begins with a null, which cannot be in an environment variable.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            # A full socket, or a supervisor that has left, must not hold the event loop up.
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto("\n".join(news).encode(), address)
        except OSError as error:
            logger.warning("%s could not be reported to the supervisor: %s", ", ".join(news), error.strerror or error)


def beat_interval(environment: Mapping[str, str]) -> float | None:
    """Return half of the seconds that systemd waits, as it advises; None if it does not wait for this process."""
    with suppress(ValueError):
        process = environment.get("WATCHDOG_PID")
        limit = int(environment.get("WATCHDOG_USEC", "0")) / 1e6
        if limit > 0 and (process is None or int(process) == os.getpid()):
            return limit / 2
    return None


class SupervisedServer(uvicorn.Server):
    """uvicorn, which reports its `health` to a supervisor, and ends its drain at a second signal."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        hangups: Hangups | None,
        keys: KeyRing,
        health: Callable[[], State],
    ) -> None:
        super().__init__(config)
        self.connections = connections
        self.supervision = Supervision.of(os.environ, health)
        self.hurry = asyncio.Event()  # set by a second signal
        self._hangups = hangups
        self._keys = keys
        self.loop: asyncio.AbstractEventLoop | None = None  # set in `startup`

    def announce(self, listeners: Sequence[socket.socket]) -> None:
        """Say where the server listens."""
        raise NotImplementedError

    def serve_until_signal(self, listeners: Sequence[Listener]) -> None:
        """Serve until a signal ends it. uvicorn raises the signal once more when everything has ended."""
        sys.setswitchinterval(GIL_SECONDS)
        try:
            self.run(sockets=list(listeners))
        finally:
            # Objects that are hidden from the collector are not freed at the exit either, and the model must be.
            gc.unfreeze()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and hide the objects made so far, which stay for ever, from the garbage collector.

        A full collection visits all objects with the GIL held: 50 ms for those of the imports alone, in which no
        request can be cancelled.
        """
        self.loop = asyncio.get_running_loop()
        self.loop.set_exception_handler(quiet_about_files)
        if self._hangups is not None:
            self._hangups.handled_by(self.loop, self._keys)
        await super().startup(sockets)
        self.announce(sockets or ())
        self.supervision.start()
        gc.collect()
        gc.freeze()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; a second signal, of either kind, ends the drain."""
        is_second = self.should_exit
        super().handle_exit(sig, frame)
        self.force_exit = is_second
        if is_second:
            self.make_haste()

    def make_haste(self) -> None:
        """End the drain. Called by any thread, and by signals' handlers."""
        if self.loop is not None:
            post(self.loop, self.hurry.set)
