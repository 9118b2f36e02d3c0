"""``pyllmcancel cluster up``: servers and the balancer on this machine, as long as this process lives."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from pyllmcancel.cluster.child import Child, first
from pyllmcancel.cluster.haproxy import BALANCER, Program, Settings, configuration
from pyllmcancel.cluster.output import to_stderr
from pyllmcancel.cluster.places import Replica
from pyllmcancel.cluster.replicas import NoAnswer, ask

logger = logging.getLogger("pyllmcancel.cluster")

LOOK_EVERY = 0.1  # seconds between two looks, until a server is healthy
# After the replicas' own drain, until they get no more requests.
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs to run.

    Attributes
    ----------
    commands
        The replicas' commands, in the order of ``settings.replicas``.
    url
        The address for clients.
    drain
        The seconds that live requests have after a signal.
    environment
        The variables to add for the replicas.
    passes_hangup
        True if SIGHUP is passed on to the replicas, which read their keys again.
    """

    program: Program
    settings: Settings
    commands: Sequence[Sequence[str]]
    url: str
    drain: float
    environment: Mapping[str, str] = field(default_factory=dict)
    passes_hangup: bool = False


class StartError(Exception):
    """A process ended before it could serve."""


def up(plan: Plan) -> int:
    """Run the plan until a signal; return the exit status."""
    with TemporaryDirectory(prefix="pyllmcancel-") as folder:
        return asyncio.run(Cluster(plan, Path(folder)).run())


class Cluster:
    """All processes, and the order in which they begin and end. Used in the event loop only."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._file = folder / "haproxy.cfg"
        self._children: list[Child] = []
        self._running: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()
        self._status = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number, status in ((signal.SIGTERM, 0), (signal.SIGINT, 128 + signal.SIGINT)):
            loop.add_signal_handler(number, self._on_signal, number, status)
        if self._plan.passes_hangup and sys.platform != "win32":
            loop.add_signal_handler(signal.SIGHUP, self._pass_hangup)
        try:
            starting = asyncio.create_task(self._start())
            if await first(asyncio.shield(starting), self._stop.wait()) == 0:
                await starting
                self._tell()
                await self._stop.wait()
            starting.cancel()
            await self._drain()
        except StartError as error:
            sys.stderr.write(f"pyllmcancel: {error}\n")
            self._status = 1
        finally:
            await self._end()
        return self._status

    def _on_signal(self, number: int, status: int) -> None:
        """Drain. A second signal means impatience, and is passed on to the replicas."""
        if self._stop.is_set():
            for child in self._children:
                child.signal(signal.SIGTERM)
        self._status = status
        self._stop.set()

    def _pass_hangup(self) -> None:
        if sys.platform != "win32":
            for child in self._children:
                if child.name != BALANCER.name:
                    child.signal(signal.SIGHUP)

    # -- beginning ----------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Start all, the first replica alone: a fault of its model is reported once, and the model is downloaded
        once.
        """
        replicas = list(zip(self._plan.settings.replicas, self._plan.commands, strict=True))
        for some in (replicas[:1], replicas[1:]):
            started = [(self._begin(one.name, command, self._plan.environment), one) for one, command in some]
            await asyncio.gather(*(self._until_healthy(child, one) for child, one in started))
        self._file.write_text(configuration(self._plan.settings), "utf-8")
        await asyncio.to_thread(self._plan.program.check, self._file)
        balancer = self._begin(BALANCER.name, (self._plan.program.path, "-db", "-f", str(self._file)))
        host, _, port = self._plan.url.removeprefix("http://").rpartition(":")
        await self._until_healthy(balancer, Replica(BALANCER.name, f"{host}:{port}"))

    def _begin(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
        child = Child(name, command, to_stderr, environment)
        self._children.append(child)
        self._running.append(asyncio.create_task(child.run(), name=name))
        return child

    async def _until_healthy(self, child: Child, place: Replica) -> None:
        """Wait until the child is healthy; StartError if it ends before."""
        while await first(child.ended.wait(), asyncio.sleep(LOOK_EVERY)) == 1:
            with suppress(NoAnswer):
                if (await asyncio.to_thread(ask, place, "/health", None))[0] == 200:
                    # No URL, which one might open: clients should use the balancer's, which the last line says.
                    logger.info("%s is healthy, on port %s", child.name, place.address.rpartition(":")[2])
                    return
        raise StartError(f"{child.name} ended before it could serve: see its output")

    def _tell(self) -> None:
        replicas = self._plan.settings.replicas
        sys.stdout.write(f"{len(replicas)} replicas and their balancer serve on {self._plan.url}\n")
        sys.stdout.flush()

    # -- ending -------------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Let the balancer accept no more requests, but live as long as the replicas, whose last answers go through
        it.
        """
        if sys.platform == "win32":
            raise NotImplementedError("`cluster up` needs Linux")
        for child in self._children:
            child.close()
            child.signal(signal.SIGUSR1 if child.name == BALANCER.name else signal.SIGTERM)
        replicas = [task for task in self._running if task.get_name() != BALANCER.name]
        await asyncio.wait(replicas, timeout=self._plan.drain + GRACE_SECONDS)

    async def _end(self) -> None:
        if sys.platform == "win32":
            raise NotImplementedError("`cluster up` needs Linux")
        for child in self._children:
            child.close()
            child.signal(signal.SIGKILL)
        await asyncio.gather(*self._running, return_exceptions=True)
