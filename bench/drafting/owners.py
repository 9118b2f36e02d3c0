"""Does an owner learn from time, or from counts of tokens, what another owner has generated?

Two keys of one server are two owners. The first asks some prompts. The second asks the same ones, and as many that
nobody has asked, in a random order. Then the first asks its prompts again: a difference that this experiment must find.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.drafting.results import Result, difference_of_medians, interval, permutation_p
from bench.drafting.servers import OFF, ON, Bench, complete, drafts
from pyllmcancel.bench.client import Ask, Client, Exchange, Target
from pyllmcancel.bench.prompts import drawn
from pyllmcancel.bench.server_truth import stopped_after

KEYS = ("first-owner", "second-owner")
WORDS, ANSWER = 120, 40
ARMS = ("nobody has asked", "the other has asked", "the same owner has asked")


@dataclass(frozen=True, slots=True)
class Seen:
    """All that an owner sees of an answer and could learn from: its time, and its counts."""

    seconds: float
    first_token: float
    cached: int
    drafted: int
    accepted: int


async def measure(bench: Bench, *, prompts: int, seed: int) -> Result:
    """The experiment, on a server that drafts and on one that does not."""
    rows, values = [], {}
    for name in (OFF, ON):
        if name not in bench.contenders:
            continue
        with bench.running(name, "--api-key", ",".join(KEYS)) as peer:
            found = await seen_on(peer.url, peer.pid, prompts, seed)
        rows += [[name, *row] for row in compared(found)]
        values[name] = {arm: [asdict(one) for one in seen] for arm, seen in found.items()}
    columns = (
        *("server", "prompts that", "answers", "median ms", "later by ms", "95 % from", "to"),
        *("p", "p of first tokens", "cached", "drafted", "accepted"),
    )
    return Result("owners: the time to a whole answer of 40 tokens", columns, rows, values)


async def seen_on(url: str, pid: int, prompts: int, seed: int) -> dict[str, list[Seen]]:
    first, second = (Client(Target(url=url, api_key=key)) for key in KEYS)
    chance = random.Random(seed)
    asked, fresh = ([text(f"{kind} {seed} {number}") for number in range(prompts)] for kind in ("asked", "fresh"))
    for prompt in [text("warm-up"), *asked]:
        await ask(first, pid, prompt)
    await ask(second, pid, text("warm-up of the second"))
    order = [(ARMS[1], prompt) for prompt in asked] + [(ARMS[0], prompt) for prompt in fresh]
    chance.shuffle(order)
    found: dict[str, list[Seen]] = {arm: [] for arm in ARMS}
    for arm, prompt in order:
        found[arm].append(await ask(second, pid, prompt))
    for prompt in asked:
        found[ARMS[2]].append(await ask(first, pid, prompt))
    return found


def text(name: str) -> str:
    return " ".join(drawn(random.Random(name), WORDS))


async def ask(client: Client, pid: int, prompt: str) -> Seen:
    client_id = f"owners-{random.SystemRandom().getrandbits(64):x}"
    exchange = complete(await client.ask(Ask(prompt=prompt, max_tokens=ANSWER, request_id=client_id)))
    assert exchange.ended_at is not None
    await stopped_after(pid, exchange.ended_at)
    return seen(exchange)


def seen(exchange: Exchange) -> Seen:
    assert exchange.ended_at is not None
    return Seen(
        seconds=exchange.ended_at - exchange.began_at,
        first_token=exchange.token_at[0] - exchange.began_at,
        cached=exchange.timings.get("cache_n", 0),
        **drafts([exchange]),
    )


def compared(found: Mapping[str, Sequence[Seen]]) -> list[list[Any]]:
    """Return a row for each arm; each is compared with the prompts that nobody has asked."""
    rows = []
    fresh = found[ARMS[0]]
    for arm, entries in found.items():
        times = [one.seconds for one in entries]
        against: list[Any] = [None] * 5
        if entries is not fresh:
            before = [one.seconds for one in fresh]
            low, high = interval([times, before], difference_of_medians)
            later = float(np.median(times) - np.median(before))
            firsts = permutation_p([one.first_token for one in entries], [one.first_token for one in fresh])
            against = [1e3 * later, 1e3 * low, 1e3 * high, permutation_p(times, before), firsts]
        counts = [sum(getattr(one, what) for one in entries) for what in ("cached", "drafted", "accepted")]
        rows.append([arm, len(entries), 1e3 * float(np.median(times)), *against, *counts])
    return rows
