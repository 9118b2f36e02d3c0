"""CPU time of HAProxy for a request, before so many replicas: ``python -m tests.cluster.balancer_cost 4 64 1000``.

Replicas that compute nothing. New names are hashed with all replicas, known ones are not. What checks take is left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from pyllmcancel.bench.server_truth import cpu_seconds
from tests.support.balancer import ADVICE, Balancer, haproxy
from tests.support.http_process import COMPLETIONS, LIMIT
from tests.support.stub_replicas import StubReplicas

N_NAMES, N_KNOWN = 50, 300
AT_REST = 2.0  # seconds


def send(client: HTTPConnection, n: int, tag: str) -> None:
    for i in range(n):
        name = f"{tag} {i % N_NAMES}"
        client.request("POST", COMPLETIONS, b"{}", {"X-Session-Id": name, "X-Supersede": name})
        client.getresponse().read()


def cost(n: int, folder: Path) -> tuple[float, float]:
    """CPU seconds for a request of a new name, and of a known one."""
    with StubReplicas(n) as stubs:
        servers: Any = stubs.all
        with Balancer(servers, folder) as balancer:
            client = HTTPConnection("127.0.0.1", balancer.port, timeout=LIMIT)
            pid = balancer.worker

            def used(n_requests: int, tag: str) -> tuple[float, float]:
                """CPU seconds, and how long it took."""
                began, before = time.monotonic(), cpu_seconds(pid)
                send(client, n_requests, tag)
                return cpu_seconds(pid) - before, time.monotonic() - began

            used(N_NAMES, "warm")
            before = cpu_seconds(pid)
            time.sleep(AT_REST)
            at_rest = (cpu_seconds(pid) - before) / AT_REST
            (new, new_took), (known, known_took) = used(N_NAMES, "seen"), used(N_KNOWN, "seen")
            client.close()
    return (new - at_rest * new_took) / N_NAMES, (known - at_rest * known_took) / N_KNOWN


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("replicas", type=int, nargs="+")
    sizes = parser.parse_args().replicas
    program = haproxy()
    if program is None:
        sys.stderr.write(ADVICE + "\n")
        return 2
    for n in sizes:
        with tempfile.TemporaryDirectory() as folder:
            new, known = cost(n, Path(folder))
        sys.stdout.write(f"{n:>5} replicas: {new * 1e3:.2f} ms for a new name, {known * 1e3:.2f} ms for a known one\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
