"""A server of one model that computes for the front: where it is, and how it is."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from pyllmcancel.front.spec import replica_of
from pyllmcancel.front.upstream import Address, Broken, ask

logger = logging.getLogger("pyllmcancel.front")

LOOK_EVERY = 0.05  # seconds between two looks while the model loads
LOOK_LATER = 1.0  # and afterwards
STUCK_SECONDS = 2.0  # without an answer, and without any time of a processor as far as that is known
HEALTH, MODELS = b"/health", b"/v1/models"
AGEING = 1.02  # of the best look at a clock, with each look: clocks drift
SERVED_BY = b"x-served-by"


class Keeping(Protocol):
    """The keeper of workers, as they know it; each call is made in the event loop."""

    silence: float  # seconds without an answer, until a worker elsewhere counts as gone

    def notify(self) -> None: ...

    def is_ready(self, worker: Worker) -> None: ...

    def has_answered(self, worker: Worker) -> None: ...

    def is_stuck(self, worker: Worker) -> None: ...

    def has_ended(self, process: Any, status: int) -> None: ...

    def has_come(self, worker: RemoteWorker, names: list[str]) -> None:
        """The worker serves the model of these names. It gets its own name from here."""

    def is_away(self, worker: RemoteWorker, why: str, *, silent: bool) -> None:
        """It takes no requests; `silent` if it does not answer either."""

    def is_forgotten(self, worker: RemoteWorker) -> None: ...


class Worker(ABC):
    """Used in the event loop only.

    Attributes
    ----------
    name
        Its own name; empty until it is known.
    model
        The model that it serves; likewise.
    address
        Where it listens, and the key by which it knows the front.
    progress
        The share of the load that is done; None before it tells.
    n_slots
        The number of requests that it computes at once, once it serves.
    answered_at
        When it last said how it is, in monotonic seconds.
    on_leave
        Called when others should go on with its requests: with True if it does not answer, with False if it ends in
        order.
    given_away
        The owners and names of answers that others went on with: what it may have of them is not the answer.
    clock_ahead
        What its monotonic clock has more than this process', in seconds.
    """

    def __init__(self, name: str, model: str, address: Address, keeper: Keeping) -> None:
        self.name = name
        self.model = model
        self.address = address
        self._keeper = keeper
        self.progress: float | None = None
        self.stage = "loading"
        self.n_slots = 1
        self.is_ready = False
        self.clock_ahead = 0.0
        self.answered_at = time.monotonic()
        self.on_leave: set[Callable[[bool], object]] = set()
        self.given_away: set[tuple[str, str]] = set()
        self._stopped = False  # set by `stop`
        self._wanted = asyncio.Event()  # set by `look_soon`

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

    def look_soon(self) -> None:
        """Ask the worker at once how it is."""
        self._wanted.set()

    async def keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), self._pause)
            self._wanted.clear()
            await self.look()

    @property
    def _pause(self) -> float:
        return LOOK_LATER if self.is_ready else LOOK_EVERY

    @abstractmethod
    async def look(self) -> None:
        """Ask the worker how far it is, and how many requests it has."""

    def _note_loading(self, told: dict[str, Any]) -> None:
        before = self.progress, self.stage
        self.progress, self.stage = told.get("progress"), told.get("stage", "loading")
        if before != (self.progress, self.stage):
            self._keeper.notify()

    @abstractmethod
    def stop(self, *, kill: bool, patience: float) -> None:
        """Use the worker no more."""

    @abstractmethod
    def hurry(self, patience: float) -> None:
        """End its drain."""

    @abstractmethod
    def end(self) -> asyncio.Future[None]:
        """Return a future of its end, which may also be given an error."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait for its end."""


class RemoteWorker(Worker):
    """A worker at an address: it is neither started nor ended here."""

    def __init__(self, address: Address, keeper: Keeping) -> None:
        super().__init__("", "", address, keeper)
        self._logged = ""  # what the log has said of it last
        self._boot = ""  # of its present start
        self._looks: list[asyncio.Future[None]] = []  # of those that wait for the next look
        self._best_trip = float("inf")  # the shortest time of a question and its answer
        self._wanted.set()
        self._task = asyncio.create_task(self.keep_looking(), name=f"look at {self.shown}")

    @property
    def shown(self) -> str:
        host = self.address.name or self.address.host
        return f"[{host}]:{self.address.port}" if ":" in host else f"{host}:{self.address.port}"

    @property
    def _pause(self) -> float:
        return LOOK_LATER

    async def look(self) -> None:
        asked_at, silent = time.monotonic(), False
        why = "does not answer"
        stuck = asyncio.get_running_loop().call_later(STUCK_SECONDS, self._is_stuck)
        try:
            head, body = await ask(self.address, HEALTH, seconds=self._keeper.silence)
            told = json.loads(body)
            if head.status == 200:
                await self._serves(told, asked_at)
                why = ""
            else:
                why = str(told.get("status"))
        except (TypeError, LookupError, AttributeError):
            why = "does not take the worker key, or is no worker"
        except (OSError, Broken, ValueError) as error:
            why, silent = str(error) or why, isinstance(error, TimeoutError)
        finally:
            stuck.cancel()
        if why and not self._stopped:
            self._is_away(why, silent=silent)
        self._tell_of_look()

    def _tell_of_look(self) -> None:
        for one in self._looks:
            if not one.done():
                one.set_result(None)
        self._looks.clear()

    async def _serves(self, told: dict[str, Any], asked_at: float) -> None:
        now = self.answered_at = time.monotonic()
        slots = int(told["slots"])  # they come only with the right key
        self._best_trip *= AGEING
        if now - asked_at < self._best_trip:
            self._best_trip = now - asked_at
            self.clock_ahead = float(told["now"]) - (asked_at + now) / 2
        if self._stopped:
            return
        if self.is_ready and told["boot"] != self._boot:
            self._is_away("it was started again")
        self._boot = told["boot"]
        if not self.is_ready:
            head, body = await ask(self.address, MODELS)
            entry = json.loads(body)["data"][0]
            self.n_slots, self.is_ready, self._logged = slots, True, ""
            self.name = self.name or head.get(SERVED_BY).decode("latin-1")
            self._keeper.has_come(self, list(dict.fromkeys([entry["id"], *entry["aliases"]])))
        self._keeper.has_answered(self)

    def _is_stuck(self) -> None:
        if self.is_ready:
            self._keeper.is_stuck(self)

    def _is_away(self, why: str, *, silent: bool = False) -> None:
        if self._logged != why:
            self._logged = why
            logger.warning("the worker at %s cannot be used: %s", self.shown, why)
        if self.is_ready:
            self.is_ready = False
            self._keeper.is_away(self, why, silent=silent)

    def stop(self, *, kill: bool = True, patience: float = 0.0) -> None:
        self._stopped, self.is_ready = True, False
        self._task.cancel()
        self._tell_of_look()

    def hurry(self, patience: float) -> None:
        """It goes on: its requests are ended here."""

    def end(self) -> asyncio.Future[None]:
        """Return a future of the next look, since the worker may be there again at once."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looks.append(future)
        if self._stopped:
            self._tell_of_look()
        self.look_soon()
        return future

    async def wait(self) -> None:
        await asyncio.gather(self._task, return_exceptions=True)
