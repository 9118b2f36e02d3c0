"""The process of one model: a worker that is started and ended here."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyllmcancel.front.child import Child, Write
from pyllmcancel.front.upstream import Address, Broken, ask
from pyllmcancel.front.worker import HEALTH, LOOK_EVERY, STUCK_SECONDS, Keeping, Worker
from pyllmcancel.system import cpu_time

logger = logging.getLogger("pyllmcancel.front")

LAST_LINES = 12  # of its log, which say why it ended
# The beginning of a line that says why a model could not be loaded.
LINE = re.compile(r"(?:[\d:.]+ [A-Z]+ +pyllmcancel[\w.]*: |pyllmcancel: )?(?:the model could not be loaded: )?")


class ModelProcess(Worker):
    """One life of a model's process. Used in the event loop only.

    Parameters
    ----------
    environment
        Variables to add to those of this process.
    write
        Called with lines of its log.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        write: Write,
        keeper: Keeping,
        model: str,
    ) -> None:
        super().__init__(name, model, address, keeper)
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._write = write
        self._child = Child(command, self._take_lines, environment)
        self._hurry: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None  # set while it is asked
        self._task = asyncio.create_task(self._live(), name=f"model {name}")

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def _take_lines(self, lines: list[str]) -> None:
        self.lines += lines
        self._write([f"[{self.name}] {line}" for line in lines])

    async def _live(self) -> None:
        looking = asyncio.create_task(self.keep_looking(), name=f"look at {self.name}")
        status = -signal.SIGKILL
        try:
            status = await self._child.live()
        except OSError as error:
            self.lines.append(f"the process could not be started: {error}")
        finally:
            looking.cancel()
            if self._hurry is not None:
                self._hurry.cancel()
            with suppress(OSError):  # the next server removes it
                assert self.address.path is not None
                self.address.path.unlink(missing_ok=True)
            self.is_ready = False
            self._keeper.has_ended(self, status)

    async def look(self) -> None:
        self._watch_for_stuck()
        try:
            head, body = await ask(self.address, HEALTH)
            told: Any = json.loads(body)
        except (OSError, TimeoutError, Broken, ValueError):
            return
        finally:
            if self._stuck is not None:
                self._stuck.cancel()
        self.answered_at = time.monotonic()
        if head.status == 200:
            if not self.is_ready and not self._stopped:
                self.is_ready, self.n_slots = True, int(told.get("slots", 1))
                self._keeper.is_ready(self)
            self._keeper.has_answered(self)
        elif told.get("status") == "loading":
            self._note_loading(told)

    def _watch_for_stuck(self, before: int | None = None) -> None:
        """Report the process as stuck for as long as it uses no processor while it is asked: one that computes does."""
        used = None if self.pid is None else cpu_time(self.pid)
        if used is not None and used == before:
            self._keeper.is_stuck(self)
        self._stuck = asyncio.get_running_loop().call_later(STUCK_SECONDS, self._watch_for_stuck, used)

    def stop(self, *, kill: bool, patience: float) -> None:
        """End the process: at once, or after its drain, for which it has `patience` seconds. Idempotent: a second
        signal would end the drain.
        """
        self.is_ready = False
        if not self._stopped or kill:
            self._child.signal(signal.SIGKILL if kill else signal.SIGTERM)
            self._child.signal(signal.SIGCONT)  # one that was stopped would not end before its patience is over
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
        self._child.signal(signal.SIGKILL)
        self._hurry = asyncio.get_running_loop().call_later(LOOK_EVERY, self._end_now)

    def end(self) -> asyncio.Future[None]:
        """Return a future of its end, or of the moment by which that should have come; it may be given an error."""
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
