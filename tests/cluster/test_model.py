"""The simulation's model of the balancer, held against a real one: the same replica for each request."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from bench.fleet_simulation.hashing import xxh32
from bench.fleet_simulation.tables import StickTable
from pyllmcancel.cluster.haproxy import Program
from tests.cluster.model_comparison import BesideModel, random_life

WAYS = {"moves for load": {}, "young": {"settle": 3_600}, "one of two": {"paired": True}}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_the_model_knows_where_each_request_goes(program: Program, tmp_path: Path, settings: dict[str, int]) -> None:
    chance = random.Random(1)
    with BesideModel(program, tmp_path, n=4, n_configured=4, **settings) as beside:
        random_life(beside, chance, 200, 80)
        assert beside.predicted > 150
        moves = sum(entry.moves for entry in beside.model.sessions.entries.values())
        assert (moves > 0) == (not settings)


def test_the_model_knows_where_names_go_when_their_replica_dies_and_comes_back(
    program: Program, tmp_path: Path
) -> None:
    chance = random.Random(2)
    with BesideModel(program, tmp_path, n=4, n_configured=4) as beside:
        random_life(beside, chance, 40, 40)
        beside.release_all()
        beside.settled()
        beside.die(2)
        while beside.model.up[2]:
            beside.send(dead=2, session=f"session {chance.randrange(40)}")
        random_life(beside, chance, 40, 40)
        beside.come_back(2)
        random_life(beside, chance, 40, 40)


def test_the_model_knows_what_a_reload_keeps_and_forgets(program: Program, tmp_path: Path) -> None:
    """In its first ten seconds a balancer passes on no names: what a new process knows of them is their hash."""
    chance = random.Random(3)
    with BesideModel(program, tmp_path, n=4, n_configured=3, settle=3_600) as beside:
        random_life(beside, chance, 60, 40)
        beside.release_all()
        beside.settled()
        beside.reload(4, keep=False)
        random_life(beside, chance, 60, 40)
        assert any(entry.at == 3 for entry in beside.model.sessions.entries.values())


def test_a_table_whose_oldest_names_are_live_takes_no_new_ones(program: Program, tmp_path: Path) -> None:
    """To make room in a table of 256, HAProxy looks at four names."""
    with BesideModel(program, tmp_path, n=4, n_configured=4, size=256) as beside:
        for i in range(4):
            beside.send(held=True, id=f"held {i}")
        for i in range(253):
            beside.send(id=f"short {i}")
        assert beside.noted("short 251")
        assert not beside.noted("short 252")
        assert beside.noted("held 0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0x02CC5D05), ("abc", 0x32D153FF), ("Nobody inspects the spammish repetition", 0xE2293B2F)],
)
def test_the_hash_is_xxh32(text: str, expected: int) -> None:
    assert int(xxh32([np.array([byte], np.uint8) for byte in text.encode()]).item()) == expected


def test_a_full_table_forgets_the_oldest_that_nothing_holds_and_takes_no_more_when_all_are_held() -> None:
    table = StickTable(4, expire=100)
    entries = [table.enter(name, now) for now, name in enumerate("abcd")]
    held = entries[0]
    assert held is not None
    held.live = 1
    assert table.enter("e", 5) is not None
    assert sorted(table.entries) == ["a", "c", "d", "e"]
    for entry in table.entries.values():
        entry.live = 1
    assert table.enter("f", 6) is None
    assert table.refused == 1
