"""The simulation of a fleet, small: what each scenario must show, and must not."""

from __future__ import annotations

from functools import cache

import pytest

from bench.fleet_simulation.broadcast_cost import most, share
from bench.fleet_simulation.churn import began, scenarios
from bench.fleet_simulation.counts import Counts
from bench.fleet_simulation.hashing import Ranking, digest
from bench.fleet_simulation.rules import Settings
from bench.fleet_simulation.workload import People, arrivals
from bench.fleet_simulation.world import World
from pyllmcancel.cluster.places import Replica

N_REPLICAS, SECONDS = 20, 30.0
PEOPLE = People(sessions=400, between_bursts=30.0, between_turns=10.0)
NAMES = [digest(f"session {i}") for i in range(PEOPLE.sessions)]
RANKING = Ranking([Replica(f"r{i + 1}", "") for i in range(N_REPLICAS + 10)], NAMES)
ARRIVALS = arrivals(PEOPLE, SECONDS, 1)


@cache
def counted(name: str) -> Counts:
    scenario = scenarios(N_REPLICAS, Settings())[name]
    world = World(
        scenario.settings,
        NAMES,
        RANKING,
        N_REPLICAS,
        n_typing=PEOPLE.n_typing,
        seed=1,
        balancers=scenario.balancers,
        began=began(scenario),
    )
    world.used_before()
    for when, happens in scenario.happens.items():
        world.at(when * SECONDS, lambda act=happens: act(world, 1))
    return world.run(ARRIVALS, SECONDS)


@pytest.mark.parametrize("name", ["steady", "young", "up", "drain", "drain-young", "restart", "two"])
def test_no_supersede_is_missed(name: str) -> None:
    assert not (seen := counted(name)).missed
    assert seen.superseding > 1_000
    assert seen.refused == 0


def test_names_move_for_load_but_not_in_the_first_hour() -> None:
    assert set(counted("steady").moved) == {"load"}
    assert not counted("young").moved
    assert not counted("drain-young").moved


def test_a_reload_that_keeps_no_names_misses_supersedes() -> None:
    seen = counted("up-early")
    assert set(seen.missed) == {"no note"}
    assert seen.lived_on > 0


def test_what_a_replica_computes_while_it_is_thought_dead_is_missed_or_over() -> None:
    assert set(counted("hang").missed) == {"down"}
    assert counted("crash").cut > 0


def test_telling_all_grows_with_the_square_of_the_servers() -> None:
    assert share(1, 5.0, 0.002, 0.001) == 0.0
    assert share(21, 5.0, 0.002, 0.001) == pytest.approx(2 * share(11, 5.0, 0.002, 0.001))
    limit = most(0.25, 5.0, 0.002, 0.001)
    assert share(limit, 5.0, 0.002, 0.001) <= 0.25 < share(limit + 1, 5.0, 0.002, 0.001)
