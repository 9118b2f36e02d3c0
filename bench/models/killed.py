"""A model's process is killed under load: what becomes of its own requests, and of the other models'."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bench.models.serving import FrontServer, serving
from bench.scenarios.report import Report
from bench.scenarios.storm.wire import Reply, Wire, ask, request_bytes
from pyllmcancel.bench.percentiles import percentile

if TYPE_CHECKING:
    from bench.models.settings import Settings

ROUNDS = 20
MODELS = ("m1", "m2", "m3")
MOST_KILLS = 2 * len(MODELS)  # of one server: a model whose process ends three times within a minute has failed
N_STREAMS = 4  # of each model
N_QUEUED = 2  # of the model that is killed
N_THREADS = len(MODELS) * N_STREAMS + N_QUEUED + 2  # one for each client at once
N_TOKENS = 900
OPTIONS = ("--models-max", "3", "--parallel", str(N_STREAMS), "--ctx-size", "8192", "--spec-type", "none")
CODE = "model_ended"


@dataclass(slots=True)
class Stream:
    """One request in a thread of its own."""

    model: str
    prompt: str
    begun: threading.Event = field(default_factory=threading.Event)
    reply: Reply = field(default_factory=Reply)
    ended_at: float = 0.0

    def run(self, port: int) -> None:
        body = body_of(self.model, self.prompt) | {"stream": True}
        with Wire(port) as wire:
            wire.send(request_bytes("/v1/completions", body))
            self.reply = wire.read(3, self.begun.set)
        self.ended_at = time.monotonic()
        self.begun.set()

    @property
    def code(self) -> str:
        return "" if self.reply.error is None else str(self.reply.error.get("code"))


@dataclass(slots=True)
class Found:
    """The findings of all rounds."""

    of_the_killed: list[Stream] = field(default_factory=list)
    of_others: list[Stream] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # texts of the others' answers
    told_ms: list[float] = field(default_factory=list)  # from the kill to the error
    back: list[float] = field(default_factory=list)  # seconds from the kill to the loaded model
    answered: list[float] = field(default_factory=list)  # … and to the answer of a later request


def body_of(model: str, prompt: str) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": N_TOKENS, "ignore_eos": True, "temperature": 0.0}


async def run(settings: Settings) -> Report:
    """One of three models' processes is killed while all have streams; the others' go on."""
    report = Report("a process is killed")
    found = Found()
    n_rounds = settings.runs or ROUNDS
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(N_THREADS))
    for begun in range(0, n_rounds, MOST_KILLS):
        async with serving(settings.model, list(MODELS), *OPTIONS, log=settings.log) as server:
            for model in MODELS:
                await server.load(model)
            port = int(server.url.rpartition(":")[2])
            alone = {one: await asyncio.to_thread(text_of, port, one) for one in prompts()}
            for number in range(begun, min(n_rounds, begun + MOST_KILLS)):
                await kill(server, port, MODELS[number % len(MODELS)], alone, found)
    tell(report, found, n_rounds)
    return report


def prompts() -> list[str]:
    return [f"def f{i}(" for i in range(N_STREAMS + N_QUEUED)]


def text_of(port: int, prompt: str, model: str = MODELS[0]) -> tuple[str, ...]:
    return ask(port, "/v1/completions", body_of(model, prompt)).texts()


async def kill(server: FrontServer, port: int, model: str, alone: dict[str, tuple[str, ...]], found: Found) -> None:
    """Kill the model's process as soon as every slot of every model has a stream that runs."""
    running = [Stream(one, prompt) for one in MODELS for prompt in prompts()[:N_STREAMS]]
    queued = [Stream(model, prompt) for prompt in prompts()[N_STREAMS:]]
    tasks = begin(port, running)
    await asyncio.gather(*(asyncio.to_thread(one.begun.wait) for one in running))
    tasks += begin(port, queued)
    await until_queued(server, model)
    n_loads = len(server.log.load_seconds)
    os.kill(server.processes()[model], signal.SIGKILL)
    killed_at = time.monotonic()
    # Until then a new request may reach the socket of the dying process, and gets the same error.
    await server.until_status(model, "unloaded", "loading")
    later = asyncio.create_task(asyncio.to_thread(text_of, port, prompts()[0], model))
    async with asyncio.timeout(300.0):
        while len(server.log.load_seconds) == n_loads:  # noqa: ASYNC110 - lines have no event
            await asyncio.sleep(0.02)
    found.back.append(time.monotonic() - killed_at)
    if await later != alone[prompts()[0]]:
        found.wrong.append(f"{model}, after the kill")
    found.answered.append(time.monotonic() - killed_at)
    await asyncio.gather(*(task for _, task in tasks))
    found.of_others += [one for one in running if one.model != model]
    found.wrong += [one.model for one in running if one.model != model and one.reply.texts() != alone[one.prompt]]
    own = [one for one in (*running, *queued) if one.model == model]
    found.of_the_killed += own
    found.told_ms += [(one.ended_at - killed_at) * 1e3 for one in own]


def begin(port: int, streams: Iterable[Stream]) -> list[tuple[Stream, asyncio.Task[None]]]:
    return [(one, asyncio.create_task(asyncio.to_thread(one.run, port))) for one in streams]


async def until_queued(server: FrontServer, model: str) -> None:
    async with asyncio.timeout(60.0):
        while True:
            listed = (await server.client.fetch_json("GET", "/v1/requests?status=waiting"))["data"]
            if sum(one.get("replica") == model for one in listed) == N_QUEUED:
                return
            await asyncio.sleep(0.02)


def tell(report: Report, found: Found, n_rounds: int) -> None:
    own, others = found.of_the_killed, found.of_others
    report.figure("kills", n_rounds)
    report.figure("streams: of the killed processes, of the others", f"{len(own)}, {len(others)}")
    ended = [one.code or one.reply.status for one in own if one.code != CODE]
    report.check(f"each request of a killed process gets {CODE}, and no end", not ended, ended[:4])
    complete = [one.prompt for one in own if one.reply.complete or one.reply.done]
    report.check("none of their answers looks complete", not complete, complete[:4])
    cut = [one.code or one.reply.status for one in others if not one.reply.complete]
    report.check("each stream of another model goes on to its end", not cut, cut[:4])
    report.check("no text is another than the one alone", not found.wrong, found.wrong[:4])
    for name, values, unit in (
        ("from the kill to the error", found.told_ms, "ms"),
        ("from the kill to the loaded model", found.back, "s"),
        ("from the kill to the answer of a request that came after the kill", found.answered, "s"),
    ):
        p50, p99 = (percentile(values, share) or 0.0 for share in (50, 99))
        report.figure(name, f"p50 {p50:.2f} {unit}, p99 {p99:.2f}, longest {max(values):.2f}")
