"""The cost of one message between servers: ``python -m bench.fleet_simulation.message_cost``.

Two servers with `--peers`. One has requests under a key, each its own, and then as many without: the difference is what
it takes to tell. The other one has none: what it uses is what it takes to hear. CPU time, so a busy machine does not
matter much.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from typing import NamedTuple

import httpx

from bench.peers import PEERS, Settings
from bench.peers.running import RunningPeer, free_port, running
from pyllmcancel.bench.server_truth import cpu_seconds
from pyllmcancel.models import packaged_model_path

PAUSE = 0.02  # seconds between two requests, so that each has a message of its own
PATIENCE = 60.0


class Used(NamedTuple):
    """CPU seconds of the server that is asked and of the other one, and how long it took."""

    asked: float
    other: float
    seconds: float


def pair(stack: ExitStack) -> list[RunningPeer]:
    """Two servers that have found each other."""
    ports = [free_port() for _ in range(2)]
    peers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    found = []
    for port in ports:
        settings = Settings(
            model=packaged_model_path(), port=port, threads=1, parallel=1, ctx_size=2048, options=("--peers", peers)
        )
        found.append(stack.enter_context(running(PEERS["pyllmcancel"], settings)))
    deadline = time.monotonic() + PATIENCE
    while any("unreached" in httpx.get(f"{one.url}/v1/requests").json() for one in found):
        if time.monotonic() > deadline:
            raise RuntimeError("the servers do not find each other")
        time.sleep(0.1)
    return found


def used(servers: list[RunningPeer], client: httpx.Client, n: int, key: str | None) -> Used:
    """Measure `n` requests to the first server."""
    began, before = time.monotonic(), [cpu_seconds(one.pid) for one in servers]
    for number in range(n):
        headers = {} if key is None else {"X-Supersede": f"{key} {number}"}
        client.post(
            f"{servers[0].url}/v1/completions", json={"prompt": "def f", "max_tokens": 1}, headers=headers
        ).raise_for_status()
        time.sleep(PAUSE)
    asked, other = (cpu_seconds(one.pid) - first for one, first in zip(servers, before, strict=True))
    return Used(asked, other, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200, help="of each kind, three times")
    n = parser.parse_args().requests
    with ExitStack() as stack:
        servers = pair(stack)
        client = stack.enter_context(httpx.Client(timeout=PATIENCE))
        used(servers, client, 50, "warm")
        for turn in range(3):
            keyed, plain = used(servers, client, n, f"turn {turn}"), used(servers, client, n, None)
            # The other one's engine, checks and greetings go on meanwhile.
            idle = plain.other * keyed.seconds / plain.seconds
            tell, hear = (keyed.asked - plain.asked) / n, (keyed.other - idle) / n
            sys.stdout.write(f"{n} messages: {tell * 1e3:.2f} ms of CPU to tell, {hear * 1e3:.2f} ms to hear\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
