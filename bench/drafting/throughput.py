"""Random text, the worst case for drafts, and several clients at once.

A server that drafts and one that does not get the same requests, turn about. Of random text the ratio of their speeds
is computed with its 95 % interval, since its aim is narrow. It is computed by the server's CPU time, too, which other
programs on the machine change less.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.drafting import edits
from bench.drafting.results import Result, interval, ratio_of_sums
from bench.drafting.servers import OFF, ON, Bench, complete, drafts, in_turn
from bench.drafting.texts import Purpose
from bench.side_by_side.measurement import Subject
from pyllmcancel.bench.client import Exchange
from pyllmcancel.bench.prompts import drawn
from pyllmcancel.bench.server_truth import cpu_seconds

WORDS, ANSWER = 60, 96
CLIENTS = (1, 4, 8)
EACH = 2  # requests of a client in a turn

Make = Callable[[Subject, int], Awaitable[Exchange]]


async def ask_random(subject: Subject, number: int, vocabulary: range) -> Exchange:
    """Ask for an answer to random words, or to random tokens."""
    chance = random.Random(f"random {number}")
    prompt: str | list[int] = " ".join(drawn(chance, WORDS))
    if number % 2:
        prompt = chance.choices(vocabulary, k=WORDS)
    sampled = {"temperature": 1.0, "seed": number}
    return complete(await subject.start(prompt, ANSWER, fields=sampled).ended())


async def vocabulary_of(subjects: dict[str, Subject]) -> range:
    """Return the model's tokens without the ends of its vocabulary, where special tokens live."""
    models = await next(iter(subjects.values())).client.fetch_json("GET", "/v1/models")
    n_vocab = models["data"][0]["meta"]["n_vocab"]
    return range(n_vocab // 4, n_vocab * 9 // 10)


async def measure_random(bench: Bench, *, pairs: int) -> Result:
    """One client; the order of the two servers changes from request to request."""
    subjects = bench.take_part((OFF, ON))
    vocabulary = await vocabulary_of(subjects)
    found: dict[str, list[Exchange]] = {name: [] for name in subjects}
    cpu: dict[str, list[float]] = {name: [] for name in subjects}
    for number in range(pairs):
        for name, subject in in_turn(subjects, number):
            used = cpu_seconds(subject.pid)
            found[name].append(await ask_random(subject, number, vocabulary))
            await subject.settle()
            cpu[name].append(cpu_seconds(subject.pid) - used)
    times = {name: [decoding(one) / (one.n_tokens - 1) for one in answers] for name, answers in found.items()}
    rows = []
    for name, answers in found.items():
        ratios: list[float | None] = [None] * 6
        if name != OFF and OFF in times:
            ratios = [*compared(times[OFF], times[name]), *compared(cpu[OFF], cpu[name])]
        speed = len(times[name]) / sum(times[name])
        rows.append([name, len(answers), speed, *ratios, *drafts(answers).values()])
    columns = (
        *("server", "answers", "tokens/s", "times off", "95 % from", "to"),
        *("by CPU time", "95 % from", "to", "drafted", "accepted"),
    )
    values = {"seconds_per_token": times, "cpu_seconds": cpu}
    return Result("random words and tokens, temperature 1.0, one client", columns, rows, values)


def compared(without: list[float], drafting: list[float]) -> tuple[float, float, float]:
    """Return the ratio of two speeds, from the times of the same requests, and the ends of its interval."""
    low, high = interval([without, drafting], ratio_of_sums, paired=True)
    return sum(without) / sum(drafting), low, high


def decoding(exchange: Exchange) -> float:
    assert exchange.ended_at is not None
    return exchange.ended_at - exchange.token_at[0]


async def measure_clients(bench: Bench, purpose: Purpose, *, turns: int, seed: int) -> Result:
    """1, 4 and 8 clients in a closed loop, with edits and with random text."""
    subjects = bench.take_part((OFF, ON))
    vocabulary = await vocabulary_of(subjects)
    n_edits = turns * EACH * sum(CLIENTS)
    some = edits.edits(purpose, n_edits, seed)

    async def ask_edit(subject: Subject, number: int) -> Exchange:
        return complete(await edits.ask(subject, edits.COMPLETION, some[number % len(some)]))

    async def ask_anything(subject: Subject, number: int) -> Exchange:
        return await ask_random(subject, number, vocabulary)

    rows, values = [], {}
    for kind, make in (("edits", ask_edit), ("random", ask_anything)):
        first = 0
        for clients in CLIENTS:
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in subjects}
            for turn in range(turns):
                numbers = range(first, first + clients * EACH)
                first += len(numbers)
                for name, subject in in_turn(subjects, turn):
                    found[name].append(await loop(subject, make, list(numbers), clients))
                    await subject.settle()
            rows += [row(kind, clients, name, found) for name in subjects]
            values[f"{kind}, {clients}"] = found
    columns = ("kind", "clients", "server", "answers", "tokens/s", "times off", "by CPU time", "drafted", "accepted")
    return Result("clients at once", columns, rows, values)


async def loop(subject: Subject, make: Make, numbers: list[int], clients: int) -> dict[str, Any]:
    """Make these requests with `clients` clients; return tokens and seconds of all."""
    waiting = list(reversed(numbers))
    answers: list[Exchange] = []

    async def client() -> None:
        while waiting:
            answers.append(await make(subject, waiting.pop()))

    began, used = time.monotonic(), cpu_seconds(subject.pid)
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds, cpu = time.monotonic() - began, cpu_seconds(subject.pid) - used
    tokens = sum(one.n_tokens for one in answers)
    return {"answers": len(answers), "tokens": tokens, "seconds": seconds, "cpu": cpu, **drafts(answers)}


def row(kind: str, clients: int, name: str, found: dict[str, list[dict[str, Any]]]) -> list[Any]:
    speeds = [speed(found, name, seconds) for seconds in ("seconds", "cpu")]
    ratios = [
        own / speed(found, OFF, seconds) if OFF in found else None
        for own, seconds in zip(speeds, ("seconds", "cpu"), strict=True)
    ]
    counts = [total(found[name], what) for what in ("drafted", "accepted")]
    return [kind, clients, name, total(found[name], "answers"), speeds[0], *ratios, *counts]


def speed(found: dict[str, list[dict[str, Any]]], name: str, seconds: str) -> float:
    return float(total(found[name], "tokens") / total(found[name], seconds))


def total(turns: list[dict[str, Any]], what: str) -> Any:
    return sum(turn[what] for turn in turns)
