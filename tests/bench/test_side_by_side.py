"""The side-by-side runs: who has a turn when, what is kept, and figures from what was seen."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench.side_by_side.__main__ import carry_out
from bench.side_by_side.cancel_in_company import steps_of
from bench.side_by_side.conditions import CpuTimes, cpu_times, stolen_percent
from bench.side_by_side.load import batch_figures, speed_figures
from bench.side_by_side.measurement import Figures, Measurement
from bench.side_by_side.parts import OtherRunError, Part, PartStore, describe_run, read_parts, schedule
from pyllmcancel.bench.client import Ask, Exchange, Outcome


async def nothing(_: Any) -> Figures:
    return {}


MEASUREMENT = Measurement(name="some", rounds=3, measure=nothing, others={"tool": nothing})


def test_in_each_round_another_peer_comes_first() -> None:
    turns = [(part.round, part.peer) for part in schedule([MEASUREMENT], ["a", "b"])]
    assert turns == [
        *((1, "a"), (1, "b"), (1, "tool")),
        *((2, "b"), (2, "tool"), (2, "a")),
        *((3, "tool"), (3, "a"), (3, "b")),
    ]


def test_a_measured_part_is_kept(tmp_path: Path) -> None:
    store, part = PartStore(tmp_path), Part(MEASUREMENT, "a", 1)
    assert not store.has(part)
    store.keep(part, {"began": "2026-01-01", "figures": {"seconds": 1.5}})
    assert store.has(part)
    assert read_parts(tmp_path) == [
        {"measurement": "some", "peer": "a", "round": 1, "began": "2026-01-01", "figures": {"seconds": 1.5}}
    ]


def test_what_could_not_be_measured_is_tried_again(tmp_path: Path) -> None:
    store, part = PartStore(tmp_path), Part(MEASUREMENT, "a", 1)
    store.keep(part, {"began": "2026-01-01", "not_measured": "it is not here"})
    assert not store.has(part)


def described(**changed: Any) -> dict[str, Any]:
    common = {"model": "m", "model_mib": 1.0, "threads": 2, "effort": 1.0, "machine": {"cores": 2}, "peers": {}}
    return common | {"commands": ["first"]} | changed


def test_a_resumed_run_remembers_all_its_commands(tmp_path: Path) -> None:
    for command in ("first", "second", "first"):
        describe_run(tmp_path, described(commands=[command]))
    assert json.loads((tmp_path / "run.json").read_text())["commands"] == ["first", "second"]


def test_runs_under_other_conditions_are_not_mixed(tmp_path: Path) -> None:
    describe_run(tmp_path, described())
    with pytest.raises(OtherRunError, match="another threads"):
        describe_run(tmp_path, described(threads=1))


def exchange(outcome: Outcome, token_at: list[float], *, tokens: int | None = None) -> Exchange:
    asked = Ask(prompt="p", max_tokens=4, request_id="r")
    return Exchange(asked, began_at=0.0, sent_at=1.0, token_at=token_at, outcome=outcome, completion_tokens=tokens)


def test_speed_counts_complete_answers_only() -> None:
    seen = [
        exchange(Outcome.OK, [2.0, 2.5, 3.0], tokens=3),
        exchange(Outcome.CANCELLED, [2.0, 2.1]),
        exchange(Outcome.ERROR, []),
    ]
    figures = speed_figures(seen, seconds=6.0)
    assert figures["tokens_per_second"] == 0.5
    assert (figures["requests"], figures["errors"], figures["tokens"]) == (3, 1, 3)
    assert figures["ttft"] == [1.0]
    assert figures["itl"] == [0.5, 0.5]
    assert figures["tpot"] == [0.5]


def test_itl_is_each_gap_and_tpot_an_answers_mean() -> None:
    seen = [exchange(Outcome.OK, [2.0, 2.5, 4.0]), exchange(Outcome.OK, [3.0, 3.25], tokens=2)]
    figures = speed_figures(seen, seconds=1.0)
    assert figures["itl"] == [0.5, 1.5, 0.25]
    assert figures["tpot"] == [1.0, 0.25]


def test_tokens_in_one_event_have_no_gap_but_still_count_for_the_pace() -> None:
    figures = speed_figures([exchange(Outcome.OK, [2.0, 4.0], tokens=5)], seconds=1.0)
    assert sorted(figures["itl"]) == [0.0, 0.0, 0.0, 2.0]
    assert figures["tpot"] == [0.5]


@pytest.mark.parametrize(("token_at", "tokens"), [([], 0), ([], 5), ([2.0], 1)])
def test_an_answer_that_came_whole_or_of_one_token_has_no_gaps(token_at: list[float], tokens: int) -> None:
    figures = speed_figures([exchange(Outcome.OK, token_at, tokens=tokens)], seconds=1.0)
    assert (figures["itl"], figures["tpot"]) == ([], [])


def test_a_batch_is_paced_by_its_answers_tokens() -> None:
    figures = batch_figures({"pl": 4, "tg": 40, "t": 8.0, "t_tg": 5.0})
    assert figures == {"tokens_per_second": 20.0, "decode_per_second": 32.0, "seconds": 8.0}


def test_the_steps_of_one_request_are_found_among_others() -> None:
    mine, other = {"request": "mine", "n_tokens": 1}, {"request": "other", "n_tokens": 7}
    steps = [
        {"started_at": 10.0, "seconds": 0.5, "sequences": [mine, other]},
        {"started_at": 10.5, "seconds": 0.5, "sequences": [other]},
    ]
    assert steps_of(steps, "mine") == [(10.0, 10.5, 1)]


def test_stolen_time_is_a_share_of_what_was_wanted() -> None:
    assert stolen_percent(CpuTimes(1000, 50), CpuTimes(1060, 90)) == 40.0
    assert stolen_percent(CpuTimes(1000, 50), CpuTimes(1000, 50)) == 0.0
    assert cpu_times().used > 0


@pytest.mark.parametrize(
    ("stolen", "kept"), [([30.0, 20.0, 5.0, 0.0], 2), ([30.0, 20.0, 50.0, 40.0], 1)], ids=["until it is quiet", "never"]
)
def test_a_part_is_measured_again_while_others_take_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stolen: list[float], kept: int
) -> None:
    attempts = [
        {"figures": {"n": n}, "stolen_percent": percent, "seconds": 1.0, "began": ""}
        for n, percent in enumerate(stolen)
    ]
    remaining = iter(attempts)
    monkeypatch.setattr(f"{carry_out.__module__}.measured", lambda *_: next(remaining))
    assert carry_out(Part(MEASUREMENT, "a", 1), PartStore(tmp_path), argparse.Namespace(max_steal=10.0))
    assert [found["figures"] for found in read_parts(tmp_path)] == [{"n": kept}]
