"""The server's step trace: what ``GET /v1/steps`` shows of the steps that were made while a block ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pyllmcancel.bench.client import Client, Target
from pyllmcancel.bench.own_figures import own_account


@dataclass(frozen=True, slots=True)
class Step:
    """One step: times in seconds on the monotonic clock, tokens by request, and the requests past their prompts."""

    number: int
    began: float
    ended: float
    status: str
    tokens: dict[str, int]
    decoding: frozenset[str]


@asynccontextmanager
async def tracing(url: str, every: float = 0.25) -> AsyncIterator[list[Step]]:
    """The steps that the server makes while the block runs, oldest first; the list is filled when it has ended.

    Raises
    ------
    RuntimeError
        If the server forgot some of them before they were asked for.
    """
    steps: list[Step] = []
    async with own_account(Client(Target(url=url)), every=every) as own:
        yield steps
    assert own is not None
    if own.n_missed:
        raise RuntimeError(f"{own.n_missed} steps were not seen: ask more often")
    steps += map(read_step, own.steps)


def read_step(record: dict[str, Any]) -> Step:
    tokens: Counter[str] = Counter()
    for entry in record["sequences"]:
        tokens[entry["request"]] += entry["n_tokens"]
    began = record["started_at"]
    decoding = frozenset(entry["request"] for entry in record["sequences"] if entry["phase"] == "decode")
    return Step(record["number"], began, began + record["seconds"], record["status"], dict(tokens), decoding)
