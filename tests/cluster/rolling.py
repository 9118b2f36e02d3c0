"""Servers that are replaced one after the other while clients ask: the sequence of docs/deploying.md.

    python -m tests.cluster.rolling
    python -m tests.cluster.rolling --untold --drain-delay 3     # the balancer is told nothing before a SIGTERM

Prints what became of the requests, and exits with 1 if one failed. HAPROXY names another HAProxy.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from tests.cluster.conftest import CONTEXT, SIZE
from tests.cluster.steady_clients import Seen, SteadyClients
from tests.support.balancer import ADVICE, Balancer, haproxy
from tests.support.http_process import ServerProcess, until
from tests.support.tiny_models import write_tiny_llama

DRAIN = 30.0
PATIENCE = 10.0  # seconds that a replica gets at the balancer, with names that never move away
BETWEEN = 2.0  # seconds of nothing but clients, before, between and after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--untold", action="store_true", help="the balancer is told nothing before a SIGTERM")
    text = "seconds after the balancer's start in which no name moves; in real life 3600 [%(default)s]"
    parser.add_argument("--settle", type=int, default=0, help=text)
    parser.add_argument("--drain-delay", type=float, default=0.0, help="the servers' [%(default)s]")
    arguments = parser.parse_args()
    if haproxy() is None:
        sys.stderr.write(ADVICE + "\n")
        return 2
    given = {"told": not arguments.untold, "settle": arguments.settle, "delay": arguments.drain_delay}
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny_llama(Path(folder) / "long.gguf", n_ctx_train=CONTEXT)
        seen = replace_all(model, Path(folder), arguments.replicas, **given)
    ended = ", ".join(f"{n} {what}" for what, n in seen.ended.most_common())
    sys.stdout.write(f"{seen.ended.total()} requests: {ended}; failed: {len(seen.failed)}\n")
    sys.stdout.write("".join(f"{one}\n" for one in seen.failed))
    return 1 if seen.failed else 0


def replace_all(model: Path, folder: Path, n: int, *, told: bool, settle: int, delay: float) -> Seen:
    """Replace `n` servers under load; what became of the requests.

    Parameters
    ----------
    told
        True if the balancer is informed before each SIGTERM.
    settle
        As for the balancer: seconds in which no name moves.
    delay
        The servers' ``--drain-delay``.
    """
    command = ("--model", str(model), *SIZE, "--drain-delay", str(delay), "--drain", str(DRAIN))
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(*command)).started() for _ in range(n)]
        balancer = stack.enter_context(Balancer(servers, folder, settle=settle))
        with SteadyClients(balancer.port) as clients:
            for i, server in enumerate(servers):
                name = f"r{i + 1}"
                time.sleep(BETWEEN)
                before = clients.seen.ended.total()
                times = [time.monotonic()]
                if told:
                    drain(balancer, name)
                    times.append(time.monotonic())
                server.signal(signal.SIGTERM)
                assert server.wait(DRAIN + PATIENCE) == -signal.SIGTERM
                times.append(time.monotonic())
                stack.enter_context(ServerProcess(*command, "--port", str(server.port))).started()
                until(balancer.states, lambda states, name=name: states[name] == "2")
                balancer.tell(f"set server llm/{name} weight 1")
                times.append(time.monotonic())
                names = ("drained", "ended", "back") if told else ("ended", "back")
                steps = [
                    f"{what} in {at - since:.1f} s" for what, (since, at) in zip(names, pairwise(times), strict=True)
                ]
                answered = clients.seen.ended.total() - before
                sys.stdout.write(f"  {name}: {', '.join(steps)}; answered meanwhile: {answered}\n")
            time.sleep(BETWEEN)
    return clients.seen


def drain(balancer: Balancer, name: str) -> None:
    """Give it nothing new, and wait until it has nothing, or long enough."""
    balancer.tell(f"set server llm/{name} weight 0")
    deadline = time.monotonic() + PATIENCE
    until(lambda: connections(balancer, name), lambda n: n == 0 or time.monotonic() > deadline, 2 * PATIENCE)


def connections(balancer: Balancer, name: str) -> int:
    """How many it has, as HAProxy counts them."""
    lines = [line.split() for line in balancer.tell("show servers conn llm").splitlines()]
    (used,) = (line[6] for line in lines if line and line[0] == f"llm/{name}")
    return int(used)


if __name__ == "__main__":
    sys.exit(main())
