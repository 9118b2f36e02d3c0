"""``python -m bench.fleet_simulation``: prints what moves and what is missed in each scenario, as a table.

The same names and arrivals for all scenarios; by default 1,000 replicas and 100,000 sessions for a minute.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from functools import partial

from bench.fleet_simulation.churn import Scenario, began, scenarios
from bench.fleet_simulation.counts import Counts
from bench.fleet_simulation.hashing import Ranking, digest
from bench.fleet_simulation.rules import Settings
from bench.fleet_simulation.workload import Arrival, People, arrivals
from bench.fleet_simulation.world import World
from bench.tables import head, line
from pyllmcancel.cluster.places import Replica

COLUMNS = (
    "scenario",
    "what happens",
    "moved, by reason",
    "sessions that moved",
    "would move next",
    "superseding",
    "missed, by reason",
    "lived on, mean s",
    "cut",
    "sent again",
    "other",
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="some of them; default: all")
    parser.add_argument("--replicas", type=int, default=1_000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the fleet's time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--between-bursts", type=float, default=480.0, help="mean seconds, of typists")
    parser.add_argument("--turn", type=float, default=15.0, help="mean seconds of an answer, of chats")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--load-factor", type=int, default=150)
    chosen = parser.parse_args()
    known = scenarios(100, Settings())
    if unknown := set(chosen.scenarios) - set(known):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if min(chosen.replicas, chosen.sessions, chosen.seconds, chosen.slots) < 1 or chosen.load_factor < 100:
        parser.error("there must be replicas, sessions, slots and a second, and a load factor of 100 or more")
    return chosen


def people(told: argparse.Namespace) -> People:
    return People(sessions=told.sessions, between_bursts=told.between_bursts, turn=told.turn)


def played(
    scenario: Scenario, ranking: Ranking, names: list[str], told: argparse.Namespace, come: list[Arrival]
) -> Counts:
    world = World(
        scenario.settings,
        names,
        ranking,
        told.replicas,
        seed=told.seed,
        balancers=scenario.balancers,
        began=began(scenario),
        n_typing=people(told).n_typing,
    )
    world.used_before()
    for share, happens in scenario.happens.items():
        world.at(share * told.seconds, partial(happens, world, max(told.replicas // 100, 1)))
    return world.run(come, told.seconds)


def row(name: str, scenario: Scenario, seen: Counts) -> str:
    def reasons(counter: dict[str, int]) -> str:
        return ", ".join(f"{reason} {n:,}" for reason, n in sorted(counter.items())) or "0"

    missed = sum(seen.missed.values())
    other = {
        "ids forgotten": seen.ids_forgotten,
        "names forgotten": seen.names_forgotten,
        "not noted": seen.not_noted,
        "no replica": seen.refused,
        "for a drained one": seen.on_drained,
        "… in the last 10 s": seen.late_on_drained,
    }
    cells = [
        name,
        scenario.what,
        reasons(seen.moved),
        f"{len(seen.movers):,}",
        f"{seen.would_move:,}",
        f"{seen.superseding:,}",
        reasons(seen.missed),
        f"{seen.lived_on / missed:.2f}" if missed else "",
        f"{seen.cut:,}",
        f"{seen.sent_again:,}",
        ", ".join(f"{what} {n:,}" for what, n in other.items() if n),
    ]
    return line(cells)


def main() -> int:
    told = options()
    gc.disable()  # nothing here is in a circle, and there are millions
    known = scenarios(told.replicas, Settings(slots=told.slots, load_factor=told.load_factor))
    names = [digest(f"session {i}") for i in range(told.sessions)]
    most = told.replicas + max(one.more for one in known.values()) * max(told.replicas // 100, 1)
    ranking = Ranking([Replica(f"r{i + 1}", "") for i in range(most)], names)
    come = arrivals(people(told), told.seconds, told.seed)
    typed = sum(one.typed for one in come)
    rate = len(come) / told.seconds
    sys.stdout.write(
        f"{len(come):,} requests, {rate:,.0f} each second, {typed:,} of them with a key; seed {told.seed}\n\n"
    )
    sys.stdout.write("\n".join(head(COLUMNS, text=len(COLUMNS))) + "\n")
    for name in told.scenarios or known:
        began_at = time.process_time()
        seen = played(known[name], ranking, names, told, come)
        sys.stdout.write(row(name, known[name], seen) + "\n")
        sys.stdout.flush()
        sys.stderr.write(f"{name}: {time.process_time() - began_at:.1f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
