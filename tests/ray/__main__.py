"""The cost of Ray, and the computation for clients that have left.

    python -m tests.ray leavers --requests 5000      # abandoned at random moments; exits with 1 if there is a ghost
    python -m tests.ray overhead --requests 300      # first token and gaps, in turn with a server without Ray
    python -m tests.ray names --requests 60          # superseding, and cancels by id, on the other replica
    python -m tests.ray burst --requests 1500        # clients that leave at once: when their requests had ended
    python -m tests.ray exodus --requests 1000       # clients that wait, and then all leave together: the same

In an environment with the extra ``[ray]``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.ray.cluster import MISSING, RayCluster, is_missing
from tests.ray.conftest import SIZE
from tests.ray.leaving_clients import abandon
from tests.ray.replica_requests import ask, ended, running
from tests.support.balancer_overhead import Site, at_once, burst, overhead, say, site_of, together, told
from tests.support.http_process import ServerProcess, fresh_id

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
            ports = {"direct": server.port, "replica": cluster.replicas[0].port, "haproxy": cluster.port}
            overhead(ports, arguments.requests)
        else:
            behind = Site(cluster.port, cluster.replicas, lambda: worker_lines(cluster))
            leave = at_once if arguments.what == "burst" else together
            burst({"direct": site_of(server), "ray": behind}, arguments.requests, leave)
    return 0


def leavers(cluster: RayCluster, n: int, seed: int) -> int:
    began = time.monotonic()
    seen = abandon(cluster, n, seed)
    ended = ", ".join(f"{count} in {phase}, {reason}" for (phase, reason), count in seen.ended.most_common())
    say(
        f"{time.monotonic() - began:.0f} s: {dict(seen.left)}; reached an engine: {sum(seen.ended.values())} ({ended});"
        f" complete: {seen.complete}; left before: {seen.unseen};"
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


def worker_lines(cluster: RayCluster) -> Iterator[str]:
    for file in Path(cluster.folder).glob("ray/session_2*/logs/worker-*.err"):
        yield from file.read_text(errors="replace").splitlines()


if __name__ == "__main__":
    sys.exit(main())
