"""What every scenario needs: a server with its log, a pace to plan by, requests whose tokens are known."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from bench.peers import OURS, Settings
from bench.peers.running import free_port, running
from bench.scenarios.http_client import Answer, Call
from bench.scenarios.server_log import ServerLog
from pyllmcancel.bench.own_figures import parse_metrics

Body = dict[str, Any]
LIVE = ("waiting", "running", "cancelling")


class UnsuitableModelError(Exception):
    """The scenario cannot show what it is meant to show on this model."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a server computes for one request alone: prompt tokens a second, seconds a generated token."""

    prefill: float
    decode: float


class Server:
    """A running server as its clients, its log's reader and its operator see it."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: ServerLog) -> None:
        self.process = process
        self.url = url
        self.log = log
        self.n_ctx = self.n_vocab = 0

    @property
    def pid(self) -> int:
        return self.process.pid

    async def learn_facts(self) -> None:
        meta = (await self.get("/v1/models"))["data"][0]["meta"]
        self.n_ctx, self.n_vocab = meta["n_ctx"], meta["n_vocab"]

    async def get(self, path: str) -> Any:
        return (await (await Call.send(self.url, path, method="GET")).answer).body

    async def post(self, path: str) -> Answer:
        return await (await Call.send(self.url, path, {})).answer

    async def request(self, request_id: str) -> dict[str, Any]:
        return cast("dict[str, Any]", await self.get(f"/v1/requests/{request_id}"))

    async def requests(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", (await self.get("/v1/requests"))["data"])

    async def metrics(self) -> dict[str, float]:
        """Samples by name; of those with labels the sum."""
        found: dict[str, float] = {}
        for sample, value in parse_metrics(await self.get("/metrics")).items():
            name = sample.partition("{")[0].removeprefix("pyllmcancel_")
            found[name] = found.get(name, 0.0) + value
        return found

    async def labelled(self, name: str, label: str) -> dict[str | None, float]:
        """Samples of one metric, by one of its labels."""
        pattern = re.compile(rf'pyllmcancel_{name}{{(?:.*,)?{label}="(\w+)".*}}')
        samples = parse_metrics(await self.get("/metrics"))
        return {match[1]: value for sample, value in samples.items() if (match := pattern.fullmatch(sample))}

    async def complete(self, body: Body, *, request_id: str | None = None, session: str | None = None) -> Call:
        """Send a completion; the call is in flight when this returns."""
        return await Call.send(self.url, "/v1/completions", body, request_id=request_id, session=session)

    def prompt(self, chance: random.Random, n_tokens: int) -> list[int]:
        """Tokens at random; the ends of a vocabulary, where special tokens live, are left out."""
        return [chance.randrange(self.n_vocab // 4, self.n_vocab * 9 // 10) for _ in range(n_tokens)]

    async def pace(self, chance: random.Random) -> Pace:
        """Measure it with one request."""
        n_prompt, n_answer = min(256, self.n_ctx // 4), 32
        call = await self.complete(completion(self.prompt(chance, n_prompt), n_answer))
        answer = await call.answer
        first, last = answer.events[0].at, answer.events[-1].at
        return Pace(n_prompt / (first - call.sent_at), (last - first) / (len(answer.events) - 1))

    def answer_lasting(self, seconds: float, pace: Pace, n_prompt: int) -> int:
        """Tokens whose generation takes about `seconds`, or UnsuitableModelError if the context is too small."""
        n_tokens, room = int(seconds / pace.decode), self.n_ctx - n_prompt
        if n_tokens > room:
            raise UnsuitableModelError(
                f"an answer of {seconds:.0f} s needs {n_tokens:,} tokens, and the context has room for {room:,}: "
                "give a larger model or more --ctx-size"
            )
        return n_tokens

    async def until(self, request_id: str, reached: Callable[[Body], bool], every: float = 0.002) -> Body:
        """Look at a request until it has `reached` something; from outside there is no event to wait for."""
        while not reached(entry := await self.request(request_id)):  # noqa: ASYNC110
            await asyncio.sleep(every)
        return entry

    async def until_idle(self, seconds: float = 60.0) -> None:
        """Wait until no request lives."""
        async with asyncio.timeout(seconds):
            while any(entry["status"] in LIVE for entry in await self.requests()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How a scenario is to be run.

    Attributes
    ----------
    threads
        Compute threads of the server; 0: one per core.
    ctx_size
        Cells of the server's context; 0: the server's own choice.
    runs
        Repetitions; None for the scenario's own number.
    log
        File to which the servers' logs are appended.
    seconds
        How long a soak lasts.
    plots
        Folder for pictures; None for none.
    """

    model: Path
    threads: int = 0
    ctx_size: int = 0
    runs: int | None = None
    seed: int = 1
    log: Path | None = None
    seconds: float = 3600.0
    plots: Path | None = None

    @asynccontextmanager
    async def server(self, *options: str) -> AsyncIterator[Server]:
        """A server, started, waited for, and stopped."""
        settings = Settings(
            model=self.model,
            port=free_port(),
            threads=self.threads,
            parallel=0,
            ctx_size=self.ctx_size,
            options=options,
        )
        log, loop = ServerLog(), asyncio.get_running_loop()

        def take(text: str, at: float) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(log.take, text, at)

        # Blocks the event loop while the server starts and ends: nothing else is under way then.
        with running(OURS, settings, self.log, take) as peer:
            server = Server(peer.process, peer.url, log)
            await server.learn_facts()
            yield server
        await asyncio.sleep(0)  # until the last lines were taken

    async def known_answers(self, bodies: Sequence[Body], *options: str) -> list[Answer]:
        """Each request's answer when it has a fresh server to itself."""
        answers = []
        async with self.server(*options) as server:
            for body in bodies:
                answers.append(await (await server.complete(body)).answer)  # noqa: PERF401 - one after the other
        return answers


def completion(prompt: list[int], max_tokens: int, *, stream: bool = True, **more: Any) -> Body:
    """A greedy completion of exactly `max_tokens` tokens that shows each of them, one event a token."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "stream": stream, "temperature": 0.0}
    return body | {"ignore_eos": True, "logprobs": 0} | more


def same_tokens(answer: Answer, known: Answer, choice: int = 0) -> bool:
    """Whether a complete answer has exactly the tokens of the known one."""
    return answer.complete and texts(answer, choice) == texts(known, choice)


def texts(answer: Answer, choice: int = 0) -> list[str]:
    return [text for text, _ in answer.tokens(choice)]


def logprob_gap(answer: Answer, known: Answer) -> float:
    """Largest difference between two answers' logprobs, up to the first token that differs; 0 if they are bit-equal."""
    gap = 0.0
    for (text, own), (other_text, other) in zip(answer.tokens(), known.tokens(), strict=False):
        gap = max(gap, abs(own - other))
        if text != other_text:
            break
    return gap
