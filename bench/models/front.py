"""The front's share: first token, gaps and cancels through it, and on the model's socket, in turn.

A cancel lasts from the close of the client's connection to the request's end in its process; the front's own list has
that end a moment later. All processes of a machine share the monotonic clock. The front's processor time is measured,
too, since waiting times say little on a busy machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.models.serving import FrontServer, serving
from bench.scenarios.report import Report
from bench.scenarios.storm.wire import request_bytes
from pyllmcancel.bench.percentiles import percentile

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.models.settings import Settings

ROUNDS = 150
N_TOKENS = 64
N_IDLE = 1_000
SETTLED = 0.1  # seconds, many times a cancel
OPTIONS = ("--models-max", "2", "--parallel", "4", "--max-queue", str(N_IDLE + 100), "--ctx-size", "8192")
OPTIONS_OF_CACHE = ("--cache-ram", "0")
MOST_FIRST, MOST_GAP, MOST_CANCEL = 1.5, 0.02, 0.5  # milliseconds that the front may add
WAYS = ("direct", "front")
EVENT = b"data: "


@dataclass(slots=True)
class Samples:
    """Milliseconds, by the way that was taken."""

    first: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    cancels: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    listed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # cancels, as the front has them


class Client:
    """Opens streams of one model, through the front or at its socket."""

    def __init__(self, server: FrontServer, model: str) -> None:
        self._port = int(server.url.rpartition(":")[2])
        self._model = model
        pid = server.processes()[model]
        self._socket = option_of(pid, "--host")
        self._key = Path(option_of(pid, "--worker-key")).read_bytes().strip()
        self._n = 0

    async def open(self, way: str, max_tokens: int) -> Stream:
        if way == "front":
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        else:
            reader, writer = await asyncio.open_unix_connection(self._socket)
        self._n += 1
        request_id = f"{self._model}-{way}-{self._n}"
        body = {
            "model": self._model,
            "prompt": f"def f{self._n}(",
            "max_tokens": max_tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0.0,
            "speculative.n_max": 0,  # the known answer of a repeated prompt would come at once
        }
        data = request_bytes("/v1/completions", body, request_id=request_id)
        data = data if way == "front" else self._with_key(data)
        sent_at = time.perf_counter()
        writer.write(data)
        return Stream(request_id, reader, writer, sent_at)

    async def listed(self) -> list[dict[str, Any]]:
        """Return the list of requests of the model's own process."""
        reader, writer = await asyncio.open_unix_connection(self._socket)
        writer.write(self._with_key(request_bytes("/v1/requests", None)))
        body = (await reader.read()).partition(b"\r\n\r\n")[2]
        writer.close()
        found: list[dict[str, Any]] = json.loads(body)["data"]
        return found

    def _with_key(self, data: bytes) -> bytes:
        return data.replace(b"\r\n\r\n", b"\r\nX-Worker-Key: " + self._key + b"\r\n\r\n", 1)


class Stream:
    """One stream, whose events are only counted."""

    def __init__(
        self, request_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent_at: float
    ) -> None:
        self.id = request_id
        self._reader = reader
        self._writer = writer
        self._sent_at = sent_at

    async def times(self, most: int | None = None) -> list[float]:
        """Return the seconds after which each event came, all or the first `most`."""
        found: list[float] = []
        while (most is None or len(found) < most) and (data := await self._reader.read(1 << 16)):
            now = time.perf_counter() - self._sent_at
            found += [now] * data.count(EVENT)
        return found

    def close(self) -> float:
        """Close the connection; return when, on the monotonic clock."""
        now = time.monotonic()
        self._writer.transport.abort()
        return now


def option_of(pid: int, name: str) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[words.index(name.encode()) + 1].decode()


def processor_seconds(pid: int) -> float:
    """The processor time of all threads of a process that live."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


async def run(settings: Settings) -> Report:
    """First token, gaps and cancels through the front and without it, also beside 1,000 idle streams."""
    report = Report("the front's share")
    rounds = settings.runs or ROUNDS
    async with serving(settings.model, ["m1", "m2"], *OPTIONS, *OPTIONS_OF_CACHE, log=settings.log) as server:
        for model in ("m1", "m2"):
            await server.load(model)
        client = Client(server, "m1")
        for way in WAYS:
            await measured(server, client, way, 8, Samples())  # warms up
        await part(report, server, client, rounds, "quiet")
        async with idle_streams(server, N_IDLE) as n_open:
            report.check(f"{N_IDLE:,} idle streams are open", n_open == N_IDLE, n_open)
            await part(report, server, client, rounds, f"beside {n_open:,} idle streams")
    return report


async def part(report: Report, server: FrontServer, client: Client, rounds: int, name: str) -> None:
    samples = Samples()
    for _ in range(rounds):
        for way in WAYS:
            await measured(server, client, way, N_TOKENS, samples)
    left: dict[str, tuple[str, float]] = {}
    for _ in range(rounds):
        for way in WAYS:
            stream = await client.open(way, 1_500)
            await stream.times(3)
            left[stream.id] = way, stream.close()
            await asyncio.sleep(SETTLED)  # or the next request's arrival would delay the ending
    await collect_cancels(server, client, left, samples)
    spent = await spent_by_front(server, client, rounds)
    tell(report, samples, spent, name)


async def measured(server: FrontServer, client: Client, way: str, n_tokens: int, samples: Samples) -> None:
    stream = await client.open(way, n_tokens)
    times = await stream.times()
    stream.close()
    samples.first[way].append(times[0] * 1e3)
    # The last event has no token.
    samples.gaps[way] += [(later - earlier) * 1e3 for earlier, later in pairwise(times[:-1])]


async def collect_cancels(
    server: FrontServer, client: Client, left: dict[str, tuple[str, float]], samples: Samples
) -> None:
    """Read when each request ended; a request that a list does not have any more is left out."""
    for _ in range(50):
        in_front = (await server.client.fetch_json("GET", "/v1/requests"))["data"]
        lists = (await client.listed(), samples.cancels), (in_front, samples.listed)
        ended = [(one, into) for found, into in lists for one in found if one["id"] in left]
        if all(one["times"]["ended"] is not None for one, _ in ended):
            break
        await asyncio.sleep(0.1)
    for entry, into in ended:
        way, closed_at = left[entry["id"]]
        if entry["cancel_reason"] == "disconnect":
            into[way].append((entry["times"]["ended"] - closed_at) * 1e3)


async def spent_by_front(server: FrontServer, client: Client, rounds: int) -> tuple[float, float]:
    """Return the milliseconds of processor time that the front spends on a request, and on each further token."""
    spent = []
    for n_tokens in (1, N_TOKENS + 1):
        before = processor_seconds(server.pid)
        for _ in range(rounds):
            await measured(server, client, "front", n_tokens, Samples())
        spent.append((processor_seconds(server.pid) - before) / rounds * 1e3)
    return spent[0], (spent[1] - spent[0]) / N_TOKENS


@asynccontextmanager
async def idle_streams(server: FrontServer, n: int) -> AsyncIterator[int]:
    """Open streams of the other model, and stop its process, so that nothing comes any more; yields how many."""
    client, pid = Client(server, "m2"), server.processes()["m2"]
    streams = [await client.open("front", 1_500) for _ in range(n)]
    async with asyncio.timeout(120.0):
        while (found := (await server.models())["m2"]["running"]) < n:  # noqa: ASYNC110 - a client has no event
            await asyncio.sleep(0.2)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield found
    finally:
        os.kill(pid, signal.SIGCONT)
        for stream in streams:
            stream.close()


def tell(report: Report, samples: Samples, spent: tuple[float, float], name: str) -> None:
    kinds = (
        *(("first token", samples.first), ("gap", samples.gaps), ("cancel", samples.cancels)),
        ("cancel, in the front's list", samples.listed),
    )
    rows = [
        (what, way, len(values[way]), *(f"{value:.3f}" for value in shown(values[way])))
        for what, values in kinds
        for way in WAYS
        if values[way]
    ]
    report.table((name, "way", "n", "p50 ms", "p99 ms"), rows)
    report.figure(f"{name}: the front's processor time", f"{spent[0]:.3f} ms a request, {spent[1]:.4f} ms a token")
    first = median_difference(samples.first)
    gap, cancel = mean_difference(samples.gaps), median_difference(samples.cancels)
    report.figure(
        f"{name}: added", f"{first:.3f} ms to the first token, {gap:.4f} ms to a gap, {cancel:.3f} ms to a cancel"
    )
    report.check(f"{name}: a first token takes at most {MOST_FIRST} ms longer", first <= MOST_FIRST, first)
    report.check(f"{name}: a gap takes at most {MOST_GAP} ms longer", gap <= MOST_GAP, gap)
    report.check(f"{name}: a cancel takes at most {MOST_CANCEL} ms longer", cancel <= MOST_CANCEL, cancel)


def shown(values: Iterable[float]) -> list[float]:
    known = list(values)
    return [percentile(known, percent) or 0.0 for percent in (50, 99)]


def median_difference(values: dict[str, Any]) -> float:
    return (percentile(values["front"], 50) or 0.0) - (percentile(values["direct"], 50) or 0.0)


def mean_difference(values: dict[str, list[float]]) -> float:
    """Gaps are often zero, since several tokens are read at once: their sum counts."""
    means = {way: sum(values[way]) / max(1, len(values[way])) for way in WAYS}
    return means["front"] - means["direct"]
