"""A server of one model that computes for the front, where it is and how it is: a process that is started and ended
here, or a server elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from pyllmcancel.front.child import Child, Write
from pyllmcancel.front.spec import replica_of
from pyllmcancel.front.upstream import Address, Broken, ask
from pyllmcancel.server.timer import Timer
from pyllmcancel.system import cpu_time

if TYPE_CHECKING:
    from pyllmcancel.front.spec import Spec

logger = logging.getLogger("pyllmcancel.front")

LOOK_EVERY = 0.05  # seconds between two looks while the model loads
LOOK_LATER = 1.0  # and afterwards
TRY_AGAIN = 0.25  # seconds until a request may go again to a worker elsewhere that did not take it
STUCK_SECONDS = 2.0  # without an answer, and without any time of a processor as far as that is known
HEALTH, MODELS = "/health", "/v1/models"
AGEING = 1.02  # of the best look at a clock, with each look: clocks drift
SERVED_BY = b"x-served-by"
LAST_LINES = 12  # of a process' log, which say why it ended
# The beginning of a line that says why a model could not be loaded.
LINE = re.compile(r"(?:[\d:.]+ [A-Z]+ +pyllmcancel[\w.]*: |pyllmcancel: )?(?:the model could not be loaded: )?")


class Reports(Protocol):
    """The part of the `Keeper` that workers report to."""

    silence: float
    write: Write

    def notify(self) -> None: ...
    def has_answered(self, worker: Worker, slots: int) -> None: ...
    def is_stuck(self, worker: Worker) -> None: ...
    def has_ended(self, process: ModelProcess, status: int) -> None: ...
    def has_come(self, worker: RemoteWorker, names: list[str], slots: int) -> None: ...
    def is_away(self, worker: RemoteWorker, why: str, *, silent: bool) -> None: ...
    def is_forgotten(self, worker: RemoteWorker) -> None: ...


class Worker:
    """Used in the event loop only."""

    def __init__(self, name: str, model: str, address: Address, keeper: Reports) -> None:
        self.name = name  # its own; empty until it is known
        self.model = model  # that it serves; likewise
        self.address = address  # where it listens, and the key by which it knows the front
        self._keeper = keeper
        self.progress: float | None = None  # the share of the load that is done; None before it tells
        self.stage = "loading"
        self._told: Any = None  # of its load, when that was asked for last
        self.is_ready = False
        self.clock_ahead = 0.0  # the seconds that its monotonic clock has more than this process'
        self.answered_at = time.monotonic()  # when it last said how it is
        # Called when others should go on with its requests: with True if it does not answer, with False if it ends in
        # order.
        self.on_leave: set[Callable[[bool], object]] = set()
        self._stopped = False  # set by `stop`
        self._wanted = asyncio.Event()  # set to have it asked at once
        self._pause = LOOK_LATER  # seconds until it is asked otherwise
        self._stuck = Timer()
        self._task = asyncio.create_task(self._live(), name=f"worker {name or address.host}")

    @property
    def replica(self) -> str:
        return replica_of(self.name)

    @property
    def pid(self) -> int | None:
        """Its process, if that is the front's child."""
        return None

    def give_away(self, *, silent: bool) -> None:
        """Have others go on with its requests."""
        for leave in list(self.on_leave):
            leave(silent)

    async def _live(self) -> None:
        """Ask the worker again and again how it is."""
        while True:
            with suppress(TimeoutError):  # not `wait_for`, which may lose a cancel
                async with asyncio.timeout(self._pause):
                    await self._wanted.wait()
            self._wanted.clear()
            await self._look()

    async def _look(self) -> None:
        asked_at, why, silent = time.monotonic(), "does not answer", False
        self._watch_for_stuck()
        try:
            head, body = await ask(self.address, HEALTH, seconds=self._keeper.silence)
            told: Any = json.loads(body)
            why = "" if head.status == 200 else str(told.get("status"))
            if head.status == 200:
                await self._serves(told, asked_at)
            elif why == "loading" and told != self._told:
                self._told = told
                self.progress, self.stage = told.get("progress"), told.get("stage", "loading")
                self._keeper.notify()
        except (TypeError, LookupError, AttributeError):
            why = "does not take the worker key, or is no worker"
        except (OSError, Broken, ValueError) as error:
            why, silent = str(error) or "does not answer", isinstance(error, TimeoutError)
        finally:
            self._stuck.stop()
        if why and not self._stopped:
            self._is_away(why, silent=silent)

    def _watch_for_stuck(self, before: int | None = None, *, is_late: bool = False) -> None:
        """Report the worker as stuck while it is asked, does not answer, and uses no processor: one that computes does.

        Nothing is known of the processors of a worker elsewhere.
        """
        used = None if self.pid is None else cpu_time(self.pid)
        if is_late and used == before and (self.is_ready or used is not None):
            self._keeper.is_stuck(self)
        self._stuck.start(STUCK_SECONDS, lambda: self._watch_for_stuck(used, is_late=True))

    async def _serves(self, told: dict[str, Any], asked_at: float) -> None:
        """Take what it says of itself when it serves."""
        raise NotImplementedError

    def _is_away(self, why: str, *, silent: bool = False) -> None:
        """It serves no requests now; `silent` if it does not answer."""

    def end(self) -> asyncio.Future[Any]:
        """Have it asked at once. Return a future of its end, or of the moment at which it may be tried again."""
        self._wanted.set()
        seconds = TRY_AGAIN if self.pid is None else STUCK_SECONDS
        return asyncio.ensure_future(asyncio.wait([self._task], timeout=seconds))

    async def wait(self) -> None:
        """Wait for its end."""
        await asyncio.wait([self._task])


class ModelProcess(Worker):
    """One life of a model's process, whose command has `environment` beside the variables of this one."""

    def __init__(
        self, spec: Spec, address: Address, command: Sequence[str], environment: Mapping[str, str], keeper: Reports
    ) -> None:
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._child = Child(command, self._take_lines, environment)
        self._killing = Timer()
        super().__init__(spec.worker, spec.name, address, keeper)
        self._pause = LOOK_EVERY

    @property
    def pid(self) -> int | None:
        return self._child.pid

    def _take_lines(self, lines: list[str]) -> None:
        self.lines += lines
        self._keeper.write([f"[{self.name}] {line}" for line in lines])

    async def _live(self) -> None:
        looking = asyncio.create_task(super()._live(), name=f"look at {self.name}")
        status = -signal.SIGKILL
        try:
            status = await self._child.live()
        except OSError as error:
            self.lines.append(f"the process could not be started: {error}")
        finally:
            looking.cancel()
            self._killing.stop()
            with suppress(OSError):  # the next server removes it
                assert self.address.path is not None
                self.address.path.unlink(missing_ok=True)
            self.is_ready = False
            self._keeper.has_ended(self, status)

    async def _serves(self, told: dict[str, Any], asked_at: float) -> None:
        self.answered_at = time.monotonic()
        if not (self.is_ready or self._stopped):
            self.is_ready, self._pause = True, LOOK_LATER
        self._keeper.has_answered(self, int(told.get("slots", 1)))

    def stop(self, *, kill: bool = False, patience: float, again: bool = False) -> None:
        """End the process, at once or after a drain of `patience` seconds. Idempotent: only `again` ends a drain."""
        self.is_ready = False
        if kill or again or not self._stopped:  # a second signal ends drains
            self._child.signal(signal.SIGKILL if kill else signal.SIGTERM)
            self._child.signal(signal.SIGCONT)  # one that was stopped would not end before its patience is over
            self._killing.start(0.0 if kill else patience, self._kill)
        self._stopped = True

    def _kill(self) -> None:
        """Kill the process, again and again: it may not have been there yet."""
        self._child.signal(signal.SIGKILL)
        self._killing.start(LOOK_EVERY, self._kill)


class RemoteWorker(Worker):
    """A worker at an address: it is neither started nor ended here."""

    def __init__(self, address: Address, keeper: Reports) -> None:
        super().__init__("", "", address, keeper)
        self._logged = ""  # what the log has said of it last
        self._boot = ""  # of its present start
        self._best_trip = float("inf")  # the shortest time of a question and its answer
        self._wanted.set()

    @property
    def shown(self) -> str:
        host = self.address.name or self.address.host
        return f"[{host}]:{self.address.port}" if ":" in host else f"{host}:{self.address.port}"

    async def _serves(self, told: dict[str, Any], asked_at: float) -> None:
        now = self.answered_at = time.monotonic()
        slots = int(told["slots"])  # they come only with the right key
        self._best_trip *= AGEING
        if now - asked_at < self._best_trip:
            self._best_trip = now - asked_at
            self.clock_ahead = float(told["now"]) - (asked_at + now) / 2
        if self.is_ready and told["boot"] != self._boot:
            self._is_away("it was started again")
        self._boot = told["boot"]
        if not self.is_ready:
            head, body = await ask(self.address, MODELS)
            entry = json.loads(body)["data"][0]
            self.is_ready, self._logged = True, ""
            self.name = self.name or head.get(SERVED_BY).decode("latin-1")
            self._keeper.has_come(self, list(dict.fromkeys([entry["id"], *entry["aliases"]])), slots)
        self._keeper.has_answered(self, slots)

    def _is_away(self, why: str, *, silent: bool = False) -> None:
        if self._logged != why:
            self._logged = why
            logger.warning("the worker at %s cannot be used: %s", self.shown, why)
        if self.is_ready:
            self.is_ready = False
            self._keeper.is_away(self, why, silent=silent)

    def stop(self) -> None:
        """Use the worker no more."""
        self._stopped, self.is_ready = True, False
        self._task.cancel()


def reason_in(line: str) -> str:
    """Return what a line of a process's log says, without the time and the other fields of the log."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        line = str(json.loads(line)["message"])
    return LINE.sub("", line, count=1)


def why_ended(name: str, status: int, lines: Collection[str], *, was_loading: bool) -> tuple[str, str]:
    """Return that a model's process has ended, in words, and the same with the reason that its log gives."""
    ended_by_another = status in (-signal.SIGKILL, -signal.SIGTERM)
    last = "" if ended_by_another else reason_in(next((line for line in reversed(list(lines)) if line.strip()), ""))
    how = f" (signal {-status})" if status < 0 else "" if last else f" (status {status})"
    what = f"the model {name} {'could not be loaded' if was_loading else 'ended'}{how}"
    return what, f"{what}: {last}" if last else what
