"""pyllmcancel beside llama-server, each with the same physical batch: cancels in prefill, and tokens a second."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.llama_server import PEER as LLAMA_SERVER
from bench.peers.protocol import HOST, Settings
from bench.server_process import wait_until_healthy

Row = dict[str, Any]
PORT = 18431
ANSWER = 128
SHORT_PROMPT = 100


@dataclass(frozen=True, slots=True)
class Subject:
    """A server's command line without its number of slots and cells, and what to call it."""

    name: str
    command: list[str]


def subjects(options: Namespace) -> list[Subject]:
    found = []
    for chunk in options.chunks:
        common = ["--gpu-layers", str(options.gpu_layers), "--ubatch-size", str(chunk)]
        ours = [sys.executable, "-P", "-m", "pyllmcancel", "serve", "--model", str(options.model)]
        program = LLAMA_SERVER.command(Settings(model=options.model, port=PORT, threads=4, parallel=1, ctx_size=0))[0]
        found.append(Subject(f"pyllmcancel -ub {chunk}", [*ours, *common]))
        theirs = [program, "--model", str(options.model), "--slots", "--cache-ram", "0", *common]
        found.append(Subject(f"llama-server -ub {chunk}", theirs))
    return found


def measure(options: Namespace) -> Iterator[Row]:
    log = options.out / "servers.log"
    for subject in subjects(options):
        with running(subject, parallel=1, ctx_size=max(options.prompts) + 512, log=log):
            yield from asyncio.run(cancels(subject, options))
    most = max(options.clients)
    for number in range(options.rounds):
        for subject in subjects(options)[:2]:
            with running(subject, parallel=most, ctx_size=most * (SHORT_PROMPT + ANSWER + 28), log=log):
                for clients, rate in asyncio.run(throughput(options.clients)):
                    about = {"what": "throughput", "round": number, "server": subject.name}
                    yield about | {"clients": clients, "tokens_per_second": rate}


@contextmanager
def running(subject: Subject, *, parallel: int, ctx_size: int, log: Path) -> Iterator[None]:
    where = ["--host", HOST, "--port", str(PORT), "--parallel", str(parallel), "--ctx-size", str(ctx_size)]
    with log.open("ab") as output:
        process = subprocess.Popen([*subject.command, *where], stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_healthy(process, f"http://{HOST}:{PORT}", 300.0)
        yield
    finally:
        process.terminate()
        process.wait(60)


async def send(path: str, body: Row | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HOST, PORT, limit=2**24)
    content = b"" if body is None else json.dumps(body).encode()
    # Of HTTP 1.0 an answer comes as it is, in no chunks.
    request = f"GET {path} HTTP/1.0" if body is None else f"POST {path} HTTP/1.1"
    head = f"{request}\r\nHost: {HOST}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    await writer.drain()
    return reader, writer


def completion(chance: random.Random, n_prompt: int, max_tokens: int) -> Row:
    """A prompt of its own: no server has any of it in its cache."""
    prompt = [chance.randrange(100, 50_000) for _ in range(n_prompt)]
    common = {"stream": True, "ignore_eos": True, "temperature": 0.0}
    return {"prompt": prompt, "max_tokens": max_tokens, **common}


async def first_token(body: Row) -> float:
    """Seconds to the first event of a stream; the rest is read as well."""
    began = time.perf_counter()
    reader, writer = await send("/v1/completions", body)
    await reader.readuntil(b"data: ")
    seconds = time.perf_counter() - began
    content = await reader.read()
    writer.close()
    if b"[DONE]" not in content:
        raise RuntimeError(f"broken answer: {content[-300:]!r}")
    return seconds


async def is_idle() -> bool:
    reader, writer = await send("/slots", None)
    content = await reader.read()
    writer.close()
    slots = json.loads(content.partition(b"\r\n\r\n")[2])
    return not any(slot["is_processing"] for slot in slots)


async def cancels(subject: Subject, options: Namespace) -> list[Row]:
    """Clients that close at random moments of their prompts.

    Half of them: until the server says that it is idle. The others: how much later than alone a client that comes with
    the close has its first token.
    """
    rows = []
    chance = random.Random(3)
    for n_prompt in options.prompts:
        await first_token(completion(chance, n_prompt, 1))
        seconds = await first_token(completion(chance, n_prompt, 1))
        alone = statistics.median([await first_token(completion(chance, 16, 1)) for _ in range(5)])
        # A long one takes as long as many.
        trials = max(5, options.trials * options.prompts[0] // n_prompt)
        idle, follow = [], []
        for _ in range(trials):
            idle.append(await idle_after(await leave_prompt(chance, n_prompt, seconds)))
            await leave_prompt(chance, n_prompt, seconds)
            follow.append(await first_token(completion(chance, 16, 1)) - alone)
        rows.append(
            {"what": "client's close", "server": subject.name, "prompt": n_prompt, "prefill_seconds": seconds}
            | spread("idle", idle)
            | spread("next_first_token_later_by", follow)
            | {"cancels": 2 * trials}
        )
    return rows


async def idle_after(closed: float) -> float:
    """Seconds from the close until no slot is at work any more; asked by HTTP, the only way that both servers have."""
    while not await is_idle():
        pass  # each question is a connection, which takes long enough
    return time.perf_counter() - closed


def spread(name: str, seconds: list[float]) -> Row:
    p50, p99 = np.percentile(seconds, [50, 99])
    return {f"{name}_p50_ms": p50 * 1e3, f"{name}_p99_ms": p99 * 1e3}


async def leave_prompt(chance: random.Random, n_prompt: int, seconds: float) -> float:
    """Close a request while its prompt is computed; the time of the close."""
    _, writer = await send("/v1/completions", completion(chance, n_prompt, 8))
    await asyncio.sleep(chance.uniform(0.1, 0.8) * seconds)
    closed = time.perf_counter()
    writer.transport.abort()
    return closed


async def throughput(counts: Sequence[int]) -> list[tuple[int, float]]:
    """Tokens a second of so many clients, each of which asks again when it is answered."""
    rates = []
    chance = random.Random(5)
    await first_token(completion(chance, SHORT_PROMPT, ANSWER))
    for clients in counts:
        n_requests = clients * (4 if clients < 32 else 2)
        bodies = iter([completion(chance, SHORT_PROMPT, ANSWER) for _ in range(n_requests)])

        async def client(bodies: Iterator[Row] = bodies) -> None:
            for body in bodies:
                await first_token(body)

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        rates.append((clients, n_requests * ANSWER / (time.perf_counter() - began)))
    return rates
