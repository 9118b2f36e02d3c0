"""The cost of HAProxy, measured in turn with a server that has none before it.

python -m tests.cluster.overhead # first token, and gaps between tokens python -m tests.cluster.overhead --burst #
clients that leave at once: when their requests had ended python -m tests.cluster.overhead --exodus # clients that wait,
and then all leave together: the same
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from pyllmcancel.models import packaged_model_path
from tests.support.balancer import ADVICE, Balancer, haproxy
from tests.support.balancer_overhead import Leave, Site, at_once, burst, overhead, site_of, together
from tests.support.http_process import ServerProcess

SIZE = {"parallel": 8, "ctx-size": 16_384, "max-queue": 2_000, "threads": 1, "log-format": "json"}
OPTIONS = ["--kv-unified", *(part for name, value in SIZE.items() for part in (f"--{name}", str(value)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--model", type=Path, default=packaged_model_path(), help="GGUF file [the packaged one]")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--burst", dest="leave", action="store_const", const=at_once)
    way.add_argument("--exodus", dest="leave", action="store_const", const=together)
    arguments = parser.parse_args()
    if haproxy() is None:
        sys.stderr.write(ADVICE + "\n")
        return 2
    leave: Leave | None = arguments.leave
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

        def server() -> ServerProcess:
            return stack.enter_context(ServerProcess("--model", str(arguments.model), *OPTIONS)).started()

        replicas = [server() for _ in range(arguments.replicas)]
        balancer = stack.enter_context(Balancer(replicas, folder))
        if leave is None:
            # The direct one is a replica, too: the same process, with the same caches.
            overhead({"direct": replicas[0].port, "haproxy": balancer.port}, arguments.requests)
            return 0
        behind = Site(balancer.port, replicas, lambda: chain.from_iterable(one.log.splitlines() for one in replicas))
        burst({"direct": site_of(server()), "haproxy": behind}, arguments.requests, leave)
    return 0


if __name__ == "__main__":
    sys.exit(main())
