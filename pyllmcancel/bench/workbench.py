"""The tools of the scenarios: the client of a server, the watch on its process, and the record of a run."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pyllmcancel.bench.answer import ExchangeError
from pyllmcancel.bench.client import Ask, Call, Client, Exchange, Outcome, Target
from pyllmcancel.bench.progress import ProgressBar
from pyllmcancel.bench.prompts import Prompts
from pyllmcancel.bench.server_truth import CpuSample, CpuWatch, Stop, cpu_seconds, stopped_after


@dataclass(slots=True)
class Run:
    """One run of a scenario, and its records.

    Attributes
    ----------
    exchanges
        The exchanges in the order in which they began, without the warm-up.
    stops
        By request id: the moment at which the server's process came to rest after a hang-up, if the request was alone.
    figures
        The scenario's results by name; names of seconds end in ``_s``, of milliseconds in ``_ms``.
    cpu
        The server's CPU time during the run; empty without a process id.
    """

    scenario: str
    options: dict[str, Any]
    began_at: float
    ended_at: float = 0.0
    exchanges: list[Exchange] = field(default_factory=list)
    stops: dict[str, Stop] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    cpu: list[CpuSample] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


class Workbench:
    """A server under load.

    Attributes
    ----------
    pid
        The id of the server's process, if it is to be watched; it must be on this machine.
    prompt_seed
        The seed of the prompts' words. By default each workbench has another one: a prompt that a server has cached
        costs it nothing.
    """

    def __init__(
        self,
        client: Client,
        prompts: Prompts,
        *,
        pid: int | None = None,
        prompt_seed: str | None = None,
        progress: ProgressBar | None = None,
    ) -> None:
        self.client = client
        self.prompts = prompts
        self.pid = pid
        self.runs: list[Run] = []  # those that have begun
        self._series = uuid.uuid4().hex[:8]
        self.prompt_seed = self._series if prompt_seed is None else prompt_seed
        self.progress = progress or ProgressBar()
        self._n_requests = 0
        self._n_keys = 0

    def new_id(self) -> str:
        """Return a request id that no other run has used: a server that knows ids refuses one that is live."""
        self._n_requests += 1
        return f"bench-{self._series}-{self._n_requests}"

    def new_key(self) -> str:
        """Return a supersede key that no other request has."""
        self._n_keys += 1
        return f"bench-key-{self._series}-{self._n_keys}"

    async def prompt(self, n_tokens: int, name: str) -> str:
        """Return a prompt of `n_tokens` tokens; prompts of different names differ from their first words on."""
        return await self.prompts.make(n_tokens, f"{self.prompt_seed}: {name}")

    def start(self, run: Run, prompt: str, max_tokens: int, **more: Any) -> Call:
        """Begin a request that belongs to a run; `more` is as in `Ask`."""
        call = self.client.start(Ask(prompt=prompt, max_tokens=max_tokens, request_id=self.new_id(), **more))
        run.exchanges.append(call.exchange)
        return call

    async def ask(self, run: Run, prompt: str, max_tokens: int, **more: Any) -> Exchange:
        """As `start`, and wait for the end."""
        exchange = await self.start(run, prompt, max_tokens, **more).ended()
        self.progress.count(exchange)
        return exchange

    async def note_stop(self, run: Run, exchange: Exchange) -> None:
        """After a hang-up with nothing else in flight, wait until the server is idle. Without a process id, a no-op."""
        if self.pid is not None and exchange.outcome is Outcome.CANCELLED and exchange.ended_at is not None:
            run.stops[exchange.ask.request_id] = await stopped_after(self.pid, exchange.ended_at)

    async def settle(self) -> None:
        """Wait until the server's process is idle, so that no work of one measurement falls into the next."""
        if self.pid is not None:
            await stopped_after(self.pid, time.monotonic())

    @asynccontextmanager
    async def recording(self, scenario: str, options: Any) -> AsyncIterator[Run]:
        """Record a run inside the block, and watch the process until the server is idle after it."""
        watch = CpuWatch(self.pid) if self.pid is not None else None
        with watch or nullcontext():
            run = Run(scenario, asdict(options), began_at=time.monotonic())
            self.runs.append(run)
            try:
                yield run
            finally:  # also if the measuring is interrupted
                self.progress.end()
                run.ended_at = time.monotonic()
                run.cpu = watch.samples if watch is not None else []  # goes on growing
            await self.settle()


@asynccontextmanager
async def open_workbench(target: Target, *, pid: int | None = None, **more: Any) -> AsyncIterator[Workbench]:
    """Find out how the server counts tokens, and which model it serves if `target` names none.

    `more` is as in `Workbench`.

    Raises
    ------
    ExchangeError
        If the server cannot be reached.
    ProcessLookupError
        If there is no such process, or it is not the server's.
    """
    client = Client(target)
    try:
        if not target.model:
            client.target = replace(target, model=await served_model(client))
        before = cpu_seconds(pid) if pid is not None else 0.0
        prompts = await Prompts.learn(client)
        if pid is not None and cpu_seconds(pid) <= before:
            # It may be a launcher's, whose figures would all be zero.
            raise ProcessLookupError(
                f"process {pid} used no CPU time while the server answered: it is not the server's process"
            )
        yield Workbench(client, prompts, pid=pid, **more)
    finally:
        client.close()


async def served_model(client: Client) -> str:
    """Return the first model that the server lists."""
    listed = await client.fetch_json("GET", "/v1/models")
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise ExchangeError("bad_answer", "the server lists no model: name one") from None
