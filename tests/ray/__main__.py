"""What Ray costs, and whether anything is computed for nobody.

    python -m tests.ray leavers --requests 5000      # abandoned at random moments; exits with 1 if there is a ghost
    python -m tests.ray overhead --requests 300      # first token and gaps, in turn with a server without Ray
    python -m tests.ray names --requests 60          # superseding, and cancels by id, on the other replica
    python -m tests.ray burst --requests 1500        # clients that leave at once: when their requests had ended
    python -m tests.ray exodus --requests 1000       # clients that wait, and then all leave together: the same

In an environment with the extra ``[ray]``.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles

from tests.ray.asking import ask, ended, running
from tests.ray.cluster import MISSING, RayCluster, is_missing
from tests.ray.conftest import SIZE
from tests.ray.leavers import abandon
from tests.support.http_process import COMPLETIONS, LIMIT, RawClient, ServerProcess, fresh_id, post_bytes, until

N_TOKENS = 64
OPTIONS = [part for name, value in SIZE.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("leavers", "overhead", "names", "burst", "exodus"))
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="in Ray's environment")
    arguments = parser.parse_args()
    if is_missing():
        sys.stderr.write(f"{MISSING}\n")
        return 2
    with ExitStack() as stack:
        own = {"replicas": arguments.replicas, "log_format": "json", **SIZE}
        environment = dict(one.split("=", 1) for one in arguments.set)
        cluster = stack.enter_context(RayCluster({"/": own}, **environment)).started()
        if arguments.what == "leavers":
            return leavers(cluster, arguments.requests, arguments.seed)
        if arguments.what == "names":
            names(cluster, arguments.requests)
            return 0
        server = stack.enter_context(ServerProcess("--log-format", "json", "--threads", "1", *OPTIONS)).started()
        if arguments.what == "overhead":
            overhead(cluster, server, arguments.requests)
        else:
            leave = at_once if arguments.what == "burst" else together
            burst(cluster, server, arguments.requests, leave)
    return 0


def leavers(cluster: RayCluster, n: int, seed: int) -> int:
    began = time.monotonic()
    seen = abandon(cluster, n, seed)
    ended = ", ".join(f"{count} in {phase}, {reason}" for (phase, reason), count in seen.ended.most_common())
    say(
        f"{time.monotonic() - began:.0f} s: {dict(seen.left)}; reached an engine: {sum(seen.ended.values())} ({ended});"
        f" finished before: {seen.finished}; left before: {seen.unseen};"
        f" latest step began {seen.latest_step * 1e3:.0f} ms after its client had left; ghosts: {len(seen.ghosts)}"
    )
    for ghost in seen.ghosts:
        say(ghost)
    return 1 if seen.ghosts else 0


def names(cluster: RayCluster, n: int) -> None:
    """Older requests on one replica, and what ends them on the other."""
    delays: dict[str, list[float]] = {"superseded, by header": [], "superseded, by body": [], "cancelled by id": []}
    for i in range(n):
        here, there = cluster.replicas[i % 2], cluster.replicas[1 - i % 2]
        for way, seconds in delays.items():
            key = fresh_id()
            headers = {"X-Supersede": key} if "header" in way else {}
            body = {"supersede": key} if "body" in way else {}
            with ExitStack() as clients:
                _, older = ask(clients, here.port, headers, **body)
                running(here, older)
                began = time.time()
                newer = None
                if "id" in way:
                    there.cancel(older)
                else:
                    newer = ask(clients, there.port, headers, **body)[1]
                seen = ended(here, older)
                if seen["status"] != "cancelled":
                    say(f"missed, {way}: {seen}; the newer one: {there.request(newer or older)}")
                seconds.append(seen["created"] + seen["seconds"] - began)
    for way, seconds in delays.items():
        say(f"{way}, {n} times: had ended after {told(seconds)}")


def overhead(cluster: RayCluster, server: ServerProcess, n: int) -> None:
    """One stream at a time, of each in turn, on connections that are kept."""
    ports = {"direct": server.port, "replica": cluster.replicas[0].port, "haproxy": cluster.port}
    with ExitStack() as stack:
        clients = {name: stack.enter_context(RawClient(port)) for name, port in ports.items()}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
        for i in range(n + 20):
            for name, client in clients.items():
                times = stream_times(client)
                if i >= 20:
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


def burst(cluster: RayCluster, server: ServerProcess, n: int, leave: Leave) -> None:
    """Clients that leave as fast as one thread can."""
    for name, port, servers in (("direct", server.port, [server]), ("ray", cluster.port, cluster.replicas)):
        left = leave(port, n, servers)
        for one in servers:
            # Answered after all that came before; a busy machine may take its time.
            one.http.post(COMPLETIONS, json={"prompt": "def ", "max_tokens": 1}, timeout=2 * LIMIT).raise_for_status()
            one.wait_idle()
        lines = server.log.splitlines() if name == "direct" else worker_lines(cluster)
        ended = list(endings(lines, left))
        delays = [at - left[one] for one, at, _ in ended] or [0.0]
        phases = dict(Counter(phase for _, _, phase in ended))
        say(
            f"{name}: of {n}, {len(ended)} reached an engine; {told(delays)}, at most {max(delays) * 1e3:.0f}; {phases}"
        )


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


def worker_lines(cluster: RayCluster) -> Iterator[str]:
    for file in Path(cluster.folder).glob("ray/session_2*/logs/worker-*.err"):
        yield from file.read_text(errors="replace").splitlines()


def endings(lines: Iterable[str], left: dict[str, float]) -> Iterator[tuple[str, float, str]]:
    """Of those that have left: when each had ended, by the log, and in which phase."""
    for line in lines:
        if " cancelled (" in line or " finished" in line:
            record = json.loads(line)
            if record.get("request_id") in left:
                at = datetime.fromisoformat(record["time"]).timestamp()
                yield record["request_id"], at, record.get("phase", "finished")


def told(seconds: list[float]) -> str:
    if len(seconds) < 2:
        return "none"
    tenths = quantiles(seconds, n=100)
    return f"p50 {median(seconds) * 1e3:.2f} ms, p90 {tenths[89] * 1e3:.2f}, p99 {tenths[98] * 1e3:.2f}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
