"""The process of one model: a ``pyllmcancel serve`` on a Unix socket, from its start to its end."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from pyllmcancel.front.child import Child
from pyllmcancel.front.spec import replica_of
from pyllmcancel.front.upstream import Broken, ask
from pyllmcancel.system import cpu_time

logger = logging.getLogger("pyllmcancel.front")

LOOK_EVERY = 0.05  # seconds between two looks while the model loads
LOOK_LATER = 1.0  # and afterwards
# Windows has neither; nothing starts there.
SIGKILL, SIGHUP, SIGCONT = (getattr(signal, name, 0) for name in ("SIGKILL", "SIGHUP", "SIGCONT"))
STUCK_SECONDS = 2.0  # without an answer and without any time of a processor: stopped, frozen, or swapped out
LAST_LINES = 12  # of its log, which say why it ended
HEALTH = b"/health"
# The beginning of a line that says why a model could not be loaded.
LINE = re.compile(r"(?:[\d:.]+ [A-Z]+ +pyllmcancel[\w.]*: |pyllmcancel: )?(?:the model could not be loaded: )?")


class Listener(Protocol):
    """Hears of what becomes of a process; each call is made in the event loop."""

    def is_ready(self, process: ModelProcess) -> None: ...

    def has_progress(self, process: ModelProcess) -> None: ...

    def has_requests(self, process: ModelProcess, n_requests: int, asked_at: float) -> None: ...

    def is_stuck(self, process: ModelProcess, seconds: float) -> None:
        """It has not answered for so long."""

    def has_ended(self, process: ModelProcess, status: int) -> None: ...


class ModelProcess:
    """One life of a model's process. Used in the event loop only.

    Parameters
    ----------
    environment
        Variables to add to those of this process.
    write
        Called with lines of its log.
    key
        The key by which it knows this process.
    model
        The model whose process it is.

    Attributes
    ----------
    socket
        The Unix socket on which it serves.
    progress
        The share of the load that is done; None before the process tells.
    n_slots
        The number of requests that it computes at once, once it serves.
    on_silence
        Called when it has not answered for so long that others should go on with its requests.
    """

    def __init__(
        self,
        name: str,
        socket: Path,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        write: Callable[[list[str]], None],
        listener: Listener,
        model: str,
        key: str | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.socket = socket
        self.progress: float | None = None
        self.n_slots = 1
        self.on_silence: set[Callable[[], object]] = set()
        self.stage = "loading"
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.is_ready = False
        self._stopped = False  # set by `stop`
        self._wanted = asyncio.Event()  # set by `look_soon`
        self._write = write
        # With it the process tells its requests, even if they have several owners.
        self._headers = [] if key is None else [(b"x-peer-key", key.encode())]
        self._listener = listener
        self._child = Child(name, command, self._heard, environment)
        self._hurry: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None  # set while it is asked
        self._answered_at = time.monotonic()
        self._task = asyncio.create_task(self._live(), name=f"model {name}")

    @property
    def replica(self) -> str:
        return replica_of(self.name)

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def _heard(self, lines: list[str]) -> None:
        self.lines.extend(line.removeprefix(f"[{self.name}] ") for line in lines)
        self._write(lines)

    async def _live(self) -> None:
        looking = asyncio.create_task(self._keep_looking(), name=f"look at {self.name}")
        status = -SIGKILL
        try:
            status = await self._child.live()
        except OSError as error:
            self.lines.append(f"the process could not be started: {error}")
        finally:
            looking.cancel()
            if self._hurry is not None:
                self._hurry.cancel()
            with suppress(OSError):  # the next server removes it
                self.socket.unlink(missing_ok=True)
            self.is_ready = False
            self._listener.has_ended(self, status)

    async def _keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), LOOK_LATER if self.is_ready else LOOK_EVERY)
            self._wanted.clear()
            await self.look()

    def look_soon(self) -> None:
        """Ask the process at once."""
        self._wanted.set()

    async def look(self) -> None:
        """Ask the process how far it is, and how many requests it has."""
        asked_at = time.monotonic()
        self._watch_for_stuck()
        try:
            head, body = await ask(self.socket, HEALTH, self._headers)
            told: Any = json.loads(body)
        except (OSError, TimeoutError, Broken, ValueError):
            return
        finally:
            if self._stuck is not None:
                self._stuck.cancel()
        self._answered_at = time.monotonic()
        if head.status == 200:
            if not self.is_ready and not self._stopped:
                self.is_ready, self.n_slots = True, int(told.get("slots", 1))
                self._listener.is_ready(self)
            self._listener.has_requests(self, int(told.get("waiting", 0)) + int(told.get("running", 0)), asked_at)
        elif told.get("status") == "loading":
            before = self.progress, self.stage
            self.progress, self.stage = told.get("progress"), told.get("stage", "loading")
            if before != (self.progress, self.stage):
                self._listener.has_progress(self)

    def _watch_for_stuck(self, before: int | None = None) -> None:
        """Report the process as stuck for as long as it uses no processor while it is asked: one that computes does."""
        used = None if self.pid is None else cpu_time(self.pid)
        if used is not None and used == before:
            self._listener.is_stuck(self, time.monotonic() - self._answered_at)
        self._stuck = asyncio.get_running_loop().call_later(STUCK_SECONDS, self._watch_for_stuck, used)

    def stop(self, *, kill: bool, patience: float) -> None:
        """End the process: at once, or after its drain, for which it has `patience` seconds. Idempotent: a second
        signal would end the drain.
        """
        self.is_ready = False
        if not self._stopped or kill:
            self._child.signal(SIGKILL if kill else signal.SIGTERM)
            self._child.signal(SIGCONT)  # one that was stopped would not end before its patience is over
            self._end_within(0.0 if kill else patience)
        self._stopped = True

    def hurry(self, patience: float) -> None:
        """End the process' drain."""
        self.is_ready = False
        self._stopped = True
        self._child.signal(signal.SIGTERM)
        self._end_within(patience)

    def _end_within(self, seconds: float) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
        self._hurry = asyncio.get_running_loop().call_later(seconds, self._end_now)

    def _end_now(self) -> None:
        """End the process; it may not have been there yet when it was stopped."""
        self._child.signal(SIGKILL)
        self._hurry = asyncio.get_running_loop().call_later(LOOK_EVERY, self._end_now)

    def hang_up(self) -> None:
        """Have the process read its API keys again."""
        self._child.signal(SIGHUP)

    def end(self) -> asyncio.Future[None]:
        """Return a future of its end, or of the moment in which that should have come. It may be given an error, too."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def tell(_: object = None) -> None:
            if not future.done():
                future.set_result(None)

        self._task.add_done_callback(tell)
        loop.call_later(STUCK_SECONDS, tell)
        return future

    async def wait(self) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.shield(self._task)


def reason_in(line: str) -> str:
    """Return what a line of a process's log says, without the time and the other fields of the log."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        line = str(json.loads(line)["message"])
    return LINE.sub("", line, count=1)


def resident_bytes(pid: int) -> int:
    """Return the memory that a process has, its mapped files included; 0 if the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in fields.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
