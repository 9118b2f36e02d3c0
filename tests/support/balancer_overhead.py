"""The cost of a balancer, and how soon requests end behind it, in turn with a server that has none before it."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from statistics import median, quantiles
from typing import NamedTuple

from tests.support.http_process import COMPLETIONS, LIMIT, RawClient, ServerProcess, fresh_id, post_bytes, until

N_TOKENS = 64
WARMUP = 20  # streams that are not counted


class Site(NamedTuple):
    """A port to ask, the servers behind it, and their logs in JSON."""

    port: int
    servers: Sequence[ServerProcess]
    lines: Callable[[], Iterable[str]]


def site_of(server: ServerProcess) -> Site:
    """A server without a balancer."""
    return Site(server.port, [server], lambda: server.log.splitlines())  # noqa: PLW0108 (the log of then)


def overhead(ports: Mapping[str, int], n: int) -> None:
    """One stream at a time, of each in turn, on connections that are kept."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(RawClient(port)) for name, port in ports.items()}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
        for i in range(n + WARMUP):
            for name, client in clients.items():
                times = stream_times(client)
                if i >= WARMUP:
                    found[name].append(times)
    for name, seen in found.items():
        firsts, gaps = [first for first, _ in seen], [gap for _, gap in seen]
        say(f"{name}: first token {told(firsts)}; mean gap {told(gaps)}")


def stream_times(client: RawClient) -> tuple[float, float]:
    """Seconds to the first token, and between tokens."""
    request = post_bytes(fresh_id(), stream=True, max_tokens=N_TOKENS, ignore_eos=True)
    began = time.perf_counter()
    client.socket.sendall(request)
    read, first, last = b"", 0.0, 0.0
    while b"\r\n0\r\n\r\n" not in read:
        read += client.socket.recv(65_536)
        last = time.perf_counter()
        if not first and b"data: " in read:
            first = last
    return first - began, (last - first) / (N_TOKENS - 1)


Leave = Callable[[int, int, Sequence[ServerProcess]], dict[str, float]]


def burst(sites: Mapping[str, Site], n: int, leave: Leave) -> None:
    """Clients that leave as fast as one thread can, and when their requests had ended."""
    for name, (port, servers, lines) in sites.items():
        left = leave(port, n, servers)
        for one in servers:
            # Answered after all that came before; a busy machine may take its time.
            one.http.post(COMPLETIONS, json={"prompt": "def ", "max_tokens": 1}, timeout=2 * LIMIT).raise_for_status()
            one.wait_idle()
        ended = list(endings(lines(), left))
        delays = [at - left[one] for one, at, _ in ended] or [0.0]
        phases = dict(Counter(phase for _, _, phase in ended))
        say(
            f"{name}: of {n}, {len(ended)} reached an engine; {told(delays)}, at most {max(delays) * 1e3:.0f}; {phases}"
        )
        stops = [at - left[one] for one, at in last_steps(servers).items() if one in left]
        say(f"{name}: {len(stops)} were computed; from their leaving to the end of their last steps {told(stops)}")


def at_once(port: int, n: int, _servers: Sequence[ServerProcess]) -> dict[str, float]:
    """Each is gone before the next one comes; when they had left, by their ids."""
    return dict(leave_at_once(port) for _ in range(n))


def together(port: int, n: int, servers: Sequence[ServerProcess]) -> dict[str, float]:
    """All are there before the first one leaves."""
    with ExitStack() as stack:
        clients = [(stack.enter_context(RawClient(port)), fresh_id()) for _ in range(n)]
        for client, request_id in clients:
            client.socket.sendall(post_bytes(request_id, stream=True, max_tokens=1_900, ignore_eos=True))
        until(lambda: sum(n_live(one) for one in servers), lambda seen: seen > n // 2)
        left = {}
        for client, request_id in clients:
            client.socket.close()
            left[request_id] = time.time()
        return left


def n_live(server: ServerProcess) -> int:
    health = server.http.get("/health").json()
    return int(health["waiting"] + health["running"])


def leave_at_once(port: int) -> tuple[str, float]:
    """Its id, and when its client had left."""
    request_id = fresh_id()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(post_bytes(request_id, stream=True, max_tokens=1_900, ignore_eos=True))
    return request_id, time.time()


def endings(lines: Iterable[str], left: Mapping[str, float]) -> Iterator[tuple[str, float, str]]:
    """Return, for each client that has left, when its request had ended by the log, and in which phase."""
    for line in lines:
        if " cancelled (" in line or " finished" in line:
            record = json.loads(line)
            if record.get("request_id") in left:
                at = datetime.fromisoformat(record["time"]).timestamp()
                yield record["request_id"], at, record.get("phase", "finished")


def last_steps(servers: Sequence[ServerProcess]) -> dict[str, float]:
    """When the last step of each request ended that the servers' traces still have; seconds since the epoch."""
    epoch = time.time() - time.monotonic()  # servers tell the machine's monotonic time
    return {
        part["request"]: epoch + step["started_at"] + step["seconds"]
        for server in servers
        for step in server.http.get("/v1/steps?last=1024").json()["data"]
        for part in step["sequences"]
    }


def told(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "none"
    tenths = quantiles(seconds, n=100)
    return f"p50 {median(seconds) * 1e3:.2f} ms, p90 {tenths[89] * 1e3:.2f}, p99 {tenths[98] * 1e3:.2f}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
