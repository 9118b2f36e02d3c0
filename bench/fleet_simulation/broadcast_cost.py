"""How many messages servers with `--peers` send each other: ``python -m bench.fleet_simulation.broadcast_cost``.

Each tells all others of each request under a key. Prints how many messages that is, and which share of a core they
cost each server, by what one message costs: `message_cost` measures it.
"""

from __future__ import annotations

import argparse
import sys

from bench.tables import head, line
from pyllmcancel.server.fleet.peer import GREET_EVERY

SIZES = (2, 4, 8, 16, 32, 64, 128, 1_000)
SHARES = (0.05, 0.25, 1.0)  # of a core


def messages(n: int, each: float) -> tuple[float, float]:
    """A second, of `n` servers with `each` requests under a key a second: those that one server sends, and those that
    it gets.

    Those that greet are among them. News that come while a message to that peer is on its way wait for the next one. At
    such rates that is seldom: none are saved here.
    """
    told = (n - 1) * (each + 1 / GREET_EVERY)
    return told, told


def share(n: int, each: float, tell: float, hear: float) -> float:
    """Return the share of a core that each server uses. A greeting counts as a message."""
    told, heard = messages(n, each)
    return told * tell + heard * hear


def most(limit: float, each: float, tell: float, hear: float) -> int:
    """Return the largest number of servers for which each uses at most `limit` of a core."""
    n = 1
    while share(n + 1, each, tell, hear) <= limit:
        n += 1
    return n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=float, default=2.23, help="requests under a key a second, for each server")
    parser.add_argument("--tell", type=float, default=2.0, help="milliseconds of CPU for a message, of who sends it")
    parser.add_argument("--hear", type=float, default=1.1, help="the same, of who gets it")
    told = parser.parse_args()
    if min(told.each, told.tell, told.hear) <= 0:
        parser.error("rates and costs must be more than 0")
    cost = told.each, told.tell / 1e3, told.hear / 1e3
    columns = ("servers", "messages a keystroke", "messages a second, all", "of a core, each server")
    rows = [
        line((f"{n:,}", f"{n - 1:,}", f"{n * messages(n, told.each)[0]:,.0f}", f"{share(n, *cost):.1%}")) for n in SIZES
    ]
    limits = ", ".join(f"{most(limit, *cost)} servers for {limit:.0%} of a core" for limit in SHARES)
    sys.stdout.write("\n".join([*head(columns, text=0), *rows, "", f"{limits}"]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
