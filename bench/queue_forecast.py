"""A storm whose clients leave: how good the expected waits are, and which requests --refuse-late would refuse.

``python -m bench.queue_forecast [--model FILE] [--seconds S] [--rate R]`` computes in this process. Nothing is refused,
so that of each request that would be, it is known whether it would have been served in time.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.config import EngineConfig
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import LateError
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import ThreadSink
from pyllmcancel.scheduling.forecast import Ahead

WARM_UP = 10.0  # seconds whose requests are not counted
LEAVERS, PATIENCE = 0.5, 4.0  # the share of clients that leave, and after how many seconds in the mean
OWNERS = ("ann", "bob", "eve")
PROMPTS, ANSWERS, TIMEOUTS = (20, 60, 150, 400), (16, 32, 64, 128), (5.0, 10.0, 20.0)


class Sent(NamedTuple):
    """A request, when it came, what was ahead of it then, its deadline, and whether it would have been refused."""

    request: Request
    at: float
    ahead: Ahead | None
    timeout: float
    refused: bool
    leaves: bool


def send(engine: Engine, chance: random.Random, words: list[int]) -> Sent:
    prompt = [chance.choice(words) for _ in range(chance.choice(PROMPTS))]
    timeout, leaves = chance.choice(TIMEOUTS), chance.random() < LEAVERS
    params = generation_params(max_tokens=chance.choice(ANSWERS), timeout=timeout, ignore_eos=True, top_k=0)
    request, refused = engine.workload.request(owner=chance.choice(OWNERS)), False
    engine.fill(request, [prompt], params, ThreadSink())
    try:
        engine.check_in_time(request)
    except LateError:
        refused = True
    engine.accept(request)
    sent = Sent(request, time.monotonic(), engine.ahead_of(request), timeout, refused, leaves)
    if leaves:
        leaving = threading.Timer(chance.expovariate(1.0 / PATIENCE), engine.cancel, (request, CancelReason.DISCONNECT))
        leaving.daemon = True
        leaving.start()
    return sent


def share(values: list[float], part: float) -> str:
    return f"{sorted(values)[int(part * (len(values) - 1))]:.2f}" if values else "-"


def report(sent: list[Sent]) -> None:
    write = sys.stdout.write
    waited = [
        (one.ahead.seconds, one.request.admitted_at - one.at)
        for one in sent
        if one.ahead is not None and one.ahead.seconds is not None and one.request.admitted_at is not None
    ]
    pairs = [(expected, actual) for expected, actual in waited if max(expected, actual) >= 1.0]
    write(f"{len(sent)} requests, of which {len(pairs)} waited and started\n")
    write(f"wait, s: median {share([actual for _, actual in pairs], 0.5)}\n")
    errors = [abs(expected - actual) for expected, actual in pairs]
    relative = [abs(expected - actual) / max(actual, 0.1) for expected, actual in pairs]
    write(f"error, s: median {share(errors, 0.5)}, 90 % {share(errors, 0.9)}\n")
    write(f"error, relative: median {share(relative, 0.5)}, 90 % {share(relative, 0.9)}\n")
    ratios = [actual / max(expected, 0.1) for expected, actual in pairs]
    write(f"actual / expected: {', '.join(share(ratios, part) for part in (0.05, 0.25, 0.5, 0.75, 0.95))}\n")
    stayed = [one for one in sent if one.request.cancellation.reason is not CancelReason.DISCONNECT]
    late = [one.request.cancellation.reason is CancelReason.DEADLINE for one in stayed]
    for name, refused in (("accepted", False), ("refused", True)):
        group = [is_late for one, is_late in zip(stayed, late, strict=True) if one.refused is refused]
        write(f"{name}: {len(group)} whose clients stayed, {sum(group)} late, {len(group) - sum(group)} in time\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(1)
    with Engine.load(EngineConfig(model=options.model, threads=options.threads)) as engine:
        words = list(
            engine.tokens("def first(things): return [one for one in things if one is not None and len(one) > 3]")
        )
        began, sent = time.monotonic(), list[Sent]()
        while time.monotonic() < began + options.seconds:
            sent.append(send(engine, chance, words))
            time.sleep(chance.expovariate(options.rate))
        for one in sent:
            one.request.ended.result()
        report([one for one in sent if one.at > began + WARM_UP])


if __name__ == "__main__":
    main()
