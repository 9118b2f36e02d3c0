"""Hours on two servers, a server of vectors beside them, and the page open: every way to ask and to leave.

The clients pace themselves: none begins a visit while the soak has used more than its share of a core. Everything that
is seen goes into files line by line, and the verdict is made of these files: a soak that is cut short has one, too.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.peers.running import free_port
from bench.scenarios.footprint import footprint, resident_mib
from bench.scenarios.harness import Bench, Server
from bench.scenarios.report import Report
from bench.scenarios.soak_files import Lines, judge_files
from bench.scenarios.soak_filling import fill_cells, fill_lists, fill_texts, port_of, reading
from bench.scenarios.storm.conversation import conversing, embedding
from bench.scenarios.storm.exact import write_exact_copy
from bench.scenarios.storm.stage import Visit
from bench.scenarios.storm.storm import ONE_KERNEL, Setting, Storm
from bench.scenarios.storm.verdict import judge_metrics
from bench.scenarios.storm.visits import LONG_SHARES, TOLD, Client
from tests.browser import installation

SLOTS = 4
COMPUTING = ("--parallel", str(SLOTS), "--ctx-size", "6144", "--cache-ram", "32", "--past-answers-mib", "1")
# A text's vector is computed beside others, so it is only the same but for the rounding of one kernel on F32 numbers
# (see the storm's settings and its exact copies).
EMBEDDING = (*ONE_KERNEL, "--ctx-size", "2048", "--pooling", "mean", "--store", "off")
NAMES = ("north", "south")
VECTORS = "vectors"
CLIENTS = {"north": 6, "south": 6, VECTORS: 2}
EVERY = 10.0  # seconds between samples
ROUND = 600.0  # seconds; after each the servers are idle for a moment, and looked at
PATIENCE = 2.0  # seconds after which a client leaves at the latest
# Seconds: one thread computes at most some 150 tokens of SmolLM2 a second, and requests to be cut have 700 or more.
LASTING = 4.0
STEP = 0.5  # seconds between two looks at the processor time
READER_STALL = 10
OPENING = 60.0  # seconds for the page to open


async def run(bench: Bench) -> Report:
    """Two hours or --seconds: two servers, vectors, the page; chats, tools, schemas, every cancel."""
    bench.into.mkdir(parents=True, exist_ok=True)
    if any(bench.into.iterdir()):
        raise SystemExit(f"{bench.into} is not empty: --into names the folder of one soak")
    counters = Report("counters")
    async with started(bench) as servers, AsyncExitStack() as stack:
        storms = await learned(bench, servers)
        samples, visits = (stack.enter_context(Lines(bench.into / f"{name}.jsonl")) for name in ("samples", "visits"))
        with reading(port_of(servers[NAMES[0]])):
            await fill(servers)
            stack.enter_context(page_open(bench, servers[NAMES[0]]))
        with sampling(bench, servers, samples) as pace:
            ends = time.monotonic() + bench.seconds
            for number in itertools.count():
                pace.round_ends = min(time.monotonic() + ROUND, ends)
                await work_together(storms, visits, pace, f"{bench.seed} {number}")
                for name, server in servers.items():
                    samples.add({"idle": name, "at": pace.seconds, **await held(server)})
                if pace.round_ends == ends:
                    break
        for name, server in servers.items():
            await judge_metrics(counters, server, name)
    report = judge_files(bench.into)
    report.checks += counters.checks
    return report


async def run_judge(bench: Bench) -> Report:
    """The verdict on the files of a long soak in --into, also of one that goes on or was cut short."""
    return judge_files(bench.into)


@asynccontextmanager
async def started(bench: Bench) -> AsyncIterator[dict[str, Server]]:
    """Start the servers."""
    ports = [free_port() for _ in NAMES]
    limited = replace(bench, threads=bench.threads or 1)
    servers: dict[str, Server] = {}
    async with AsyncExitStack() as stack:
        for name, port in zip(NAMES, ports, strict=True):
            own = ("--replica", name, "--reader-stall", str(READER_STALL))
            store = ("--store", str(bench.into / f"{name}.db"))
            logged = replace(limited, log=bench.into / f"{name}.log")
            servers[name] = await stack.enter_async_context(logged.server(*COMPUTING, *own, *store, port=port))
        logged = replace(limited, log=bench.into / f"{VECTORS}.log")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        exact = replace(logged, model=write_exact_copy(bench.model, folder / bench.model.name))
        servers[VECTORS] = await stack.enter_async_context(exact.server(*EMBEDDING))
        yield servers


async def learned(bench: Bench, servers: dict[str, Server]) -> dict[str, Storm]:
    """Have every question answered alone, by one of the two for both."""
    first, vectors = (
        Storm(servers[name], Setting(name, (), palette, 1.0), bench.seed)
        for name, palette in ((NAMES[0], conversing), (VECTORS, embedding))
    )
    for storm in (first, vectors):
        await storm.learn(LASTING)
        storm.stage.patience = PATIENCE
    second = Storm(servers[NAMES[1]], Setting(NAMES[1], (), conversing, 1.0), bench.seed)
    second.share(first)
    return {NAMES[0]: first, NAMES[1]: second, VECTORS: vectors}


async def fill(servers: dict[str, Server]) -> None:
    """Fill the stores that have a limit."""
    await asyncio.gather(fill_texts(servers[VECTORS]), *(fill_cells(servers[name], SLOTS) for name in NAMES))
    await asyncio.gather(*(fill_lists(port_of(servers[name]), name) for name in NAMES))


async def work_together(storms: dict[str, Storm], visits: Lines, pace: Pace, seed: str) -> None:
    """All clients visit until the round is over."""
    clients = [(name, f"{seed} {name} {number}") for name, count in CLIENTS.items() for number in range(count)]
    with ThreadPoolExecutor(len(clients)) as pool:
        run_in = asyncio.get_running_loop().run_in_executor
        await asyncio.gather(*(run_in(pool, work, storms[name], own, visits, pace) for name, own in clients))


def work(storm: Storm, seed: str, visits: Lines, pace: Pace) -> None:
    """Visit until the round is over; runs in a client's thread. What a client cannot cope with is a fault, too."""
    chance = random.Random(seed)
    client = Client(storm.stage, seed)
    ways = [way for way in LONG_SHARES if storm.stage.palette.telling or way not in (*TOLD, "stalled")]
    while pace.allows():
        (way,) = chance.choices(ways, [LONG_SHARES[way] for way in ways])
        try:
            made = client.visit(way)
        except Exception as error:
            made = [Visit(f"unknown {seed} {time.monotonic()}", way, "", (None,), faults=[f"{way}: {error!r}"])]
        for visit in made:
            visits.add(asdict(visit))


async def held(server: Server) -> dict[str, Any]:
    """Return the holdings of an idle server, or that it does not become idle."""
    try:
        return asdict(await footprint(server))
    except Exception as error:
        return {"gauges": {repr(error): 1}}


class Pace:
    """Says when a client may begin its next visit. `round_ends` is written by the event loop, between rounds."""

    def __init__(self, share: float) -> None:
        self.round_ends = 0.0
        self._share = share
        self._began = time.monotonic()
        self._used_before = processor_seconds()
        self._may_begin = threading.Event()
        self._may_begin.set()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def used(self) -> float:
        """The processor time of this process and of all that it started."""
        return processor_seconds() - self._used_before

    def look(self) -> None:
        """Called by one thread, twice a second."""
        if self.used <= self._share * self.seconds:
            self._may_begin.set()
        else:
            self._may_begin.clear()

    def allows(self) -> bool:
        """Wait for processor time; False if the round is over."""
        while time.monotonic() < self.round_ends:
            if self._may_begin.wait(STEP):
                return True
        return False


def processor_seconds() -> float:
    """Return the processor time of this process and its descendants that live."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                times[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(times.get(pid, 0.0) for pid in own)


@contextmanager
def sampling(bench: Bench, servers: dict[str, Server], samples: Lines) -> Iterator[Pace]:
    """Write a sample every ten seconds, and keep the pace, in a thread of its own."""
    pace, stopping = Pace(bench.share), threading.Event()

    def sample() -> None:
        due = 0.0
        while not stopping.wait(STEP):
            pace.look()
            if pace.seconds >= due:
                due += EVERY
                resident = {name: resident_mib(server.pid) for name, server in servers.items()}
                now = datetime.now().isoformat(timespec="seconds")
                samples.add({"at": pace.seconds, "time": now, "resident": resident, "used": pace.used})

    thread = threading.Thread(target=sample, name="samples")
    thread.start()
    try:
        yield pace
    finally:
        stopping.set()
        thread.join()


@contextmanager
def page_open(bench: Bench, server: Server) -> Iterator[None]:
    """Open the page in a browser, which writes its own samples; they say if it could not be opened.

    The block begins when the page is open.
    """
    path = bench.into / "page.txt"
    if (reason := installation.missing()) is not None:
        path.write_text(f"{reason}\n")
        yield
        return
    command = [sys.executable, "-m", "tests.browser", "--soak", f"{bench.seconds:g}", "--url", server.url]
    with path.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        try:
            until = time.monotonic() + OPENING
            while not path.stat().st_size and process.poll() is None and time.monotonic() < until:
                time.sleep(STEP)
            yield
            with suppress(subprocess.TimeoutExpired):
                process.wait(300.0)
        finally:
            process.terminate()
