"""Requests that are abandoned at random moments, in any number, through a balancer before real servers.

    python -m tests.cluster --requests 20000

Prints how they ended, and exits with 1 if one of them was computed on for nobody. HAPROXY names another HAProxy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.cluster.conftest import CONTEXT, started
from tests.cluster.leavers import abandon
from tests.support.balancer import ADVICE, Balancer, haproxy
from tests.support.tiny_models import write_tiny_llama


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    program = haproxy()
    if program is None:
        sys.stderr.write(ADVICE + "\n")
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_tiny_llama(folder / "long.gguf", n_ctx_train=CONTEXT)
        servers = started(stack, arguments.replicas, model)
        balancer = stack.enter_context(Balancer(servers, folder))
        began = time.monotonic()
        seen = abandon(balancer.port, servers, arguments.requests, arguments.seed)
    ended = ", ".join(f"{n} in {what}" for what, n in seen.ended.most_common())
    left = ", ".join(f"{n} by {way}" for way, n in seen.left.items())
    sys.stdout.write(
        f"HAProxy {'.'.join(map(str, program.version))}, {arguments.replicas} replicas,"
        f" {time.monotonic() - began:.0f} s: {left}; reached an engine: {sum(seen.ended.values())} ({ended});"
        f" left before: {seen.unseen}; ghosts: {len(seen.ghosts)}\n"
    )
    sys.stdout.write("".join(f"{ghost}\n" for ghost in seen.ghosts))
    return 1 if seen.ghosts else 0


if __name__ == "__main__":
    sys.exit(main())
