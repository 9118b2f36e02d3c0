"""Requests that are abandoned at random moments, or superseded, in any number, through a balancer before real servers.

    python -m tests.cluster --requests 20000
    python -m tests.cluster --requests 20000 --replicas 4 --hosts 2
    python -m tests.cluster --sessions 1000

Prints how they ended, and exits with 1 if one of them was computed on for nobody. HAPROXY names another HAProxy. With
`--hosts` the replicas are on so many machines, made of network namespaces, the balancer and the clients each on one
more, and the clients' cable is pulled now and then: that needs root and iproute2.

With `--sessions`, in each of so many a newer request supersedes the older one, while replicas are added, from 1 to 4,
and taken away, down to 2; they know each other (`--peers`), as those of `cluster up` do. Exits with 1 if one of the
newer ones did not live, or its older one did, or a cancel missed it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from tests.cluster.conftest import CONTEXT, start, started
from tests.cluster.leaving_clients import Place, abandon
from tests.cluster.superseding import superseded
from tests.support.balancer import ADVICE, Balancer, haproxy
from tests.support.http_process import ServerProcess
from tests.support.network import SERVER, NamespacesMissingError, Network, inside
from tests.support.proxies import free_port
from tests.support.tiny_models import write_tiny_llama

SIZES = (1, 2, 3, 4, 3, 2)  # replicas, one after the other


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    program = haproxy()
    if program is None:
        sys.stderr.write(ADVICE + "\n")
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_tiny_llama(folder / "long.gguf", n_ctx_train=CONTEXT)
        if arguments.sessions is not None:
            return supersede(stack, folder, model, arguments.sessions, arguments.seed)
        try:
            place, servers = site(stack, arguments.replicas, arguments.hosts, folder, model)
        except NamespacesMissingError as error:
            sys.stderr.write(f"no machines can be made of network namespaces: {error}\n")
            return 2
        began = time.monotonic()
        seen = abandon(place, servers, arguments.requests, arguments.seed)
    ended = ", ".join(f"{n} in {what}" for what, n in seen.ended.most_common())
    left = ", ".join(f"{n} by {way}" for way, n in seen.left.items())
    sys.stdout.write(
        f"HAProxy {'.'.join(map(str, program.version))}, {arguments.replicas} replicas on {arguments.hosts or 1} hosts,"
        f" {time.monotonic() - began:.0f} s: {left}; reached an engine: {sum(seen.ended.values())} ({ended});"
        f" left before: {seen.unseen}; ghosts: {len(seen.ghosts)}\n"
    )
    sys.stdout.write("".join(f"{ghost}\n" for ghost in seen.ghosts))
    return 1 if seen.ghosts else 0


def supersede(stack: ExitStack, folder: Path, model: Path, n_sessions: int, seed: int) -> int:
    ports = [free_port() for _ in range(max(SIZES))]
    peers = ",".join(f"http://127.0.0.1:{port}" for port in ports)
    servers = [start(stack, model, "--port", str(port), "--peers", peers) for port in ports]
    balancer = stack.enter_context(Balancer(servers[: SIZES[0]], folder, settle=3_600))
    outcome = asyncio.run(superseded(balancer, servers, SIZES[1:], n_sessions, seed))
    p50, p99 = (1e3 * float(value) for value in np.percentile(outcome.stops, (50, 99)))
    sys.stdout.write(
        f"{' '.join(map(str, outcome.n_replicas))} replicas: newest won {outcome.n_right} of {n_sessions};"
        f" from its sending to the end of the older answer {p50:.1f} ms (p50), {p99:.1f} ms (p99)\n"
    )
    sys.stdout.write("".join(f"{one}\n" for one in outcome.wrong))
    return 1 if outcome.wrong else 0


def site(
    stack: ExitStack, n_replicas: int, n_hosts: int, folder: Path, model: Path
) -> tuple[Place, Sequence[ServerProcess]]:
    """Replicas and a balancer before them, on this machine or, if there are to be hosts, each on one of them."""
    if not n_hosts:
        servers = started(stack, n_replicas, model)
        return Place(stack.enter_context(Balancer(servers, folder)).port), servers
    hosts = [f"192.0.2.{11 + number}" for number in range(n_hosts)]
    network = stack.enter_context(Network(hosts))
    servers = []
    stack.enter_context(inside(network.server))  # from here the replicas are looked at, by their addresses
    for number in range(n_replicas):
        host = hosts[number % n_hosts]
        with inside(network.namespaces[host]):
            servers.append(start(stack, model, "--host", host, "--trusted-proxies", SERVER))
    return Place(stack.enter_context(Balancer(servers, folder, host=SERVER)).port, SERVER, network), servers


if __name__ == "__main__":
    sys.exit(main())
