"""The measurement of drafts: texts kept apart, ways to type, requests for edits, statistics and tables."""

import random
from types import SimpleNamespace
from typing import Any

import pytest

from bench.drafting import texts
from bench.drafting.edits import Made
from bench.drafting.edits import table as table_of_edits
from bench.drafting.results import interval, other_answers, ratio_of_sums
from bench.drafting.servers import LLAMA, OFF, ON
from bench.drafting.texts import PURPOSES, Place, functions, purpose_of
from bench.drafting.throughput import compared, row
from bench.drafting.typing_along import PATIENT, Stroke, Typing, stroke
from bench.drafting.typing_along import table as table_of_typing
from pyllmcancel.bench.client import Ask, Exchange, Outcome


def exchange(**changed: Any) -> Exchange:
    given: dict[str, Any] = {
        "ask": Ask(prompt="p", max_tokens=4, request_id="r"),
        "began_at": 1.0,
        "token_at": [1.5, 2.0],
        "ended_at": 2.0,
        "outcome": Outcome.OK,
        "text": "ab",
        "completion_tokens": 3,
    }
    return Exchange(**(given | changed))


def test_no_file_serves_both_purposes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "functions_in", lambda path: [SimpleNamespace(file=path.name)])  # files are not parsed
    tuning, measuring = ({one.file for one in functions(purpose, random.Random(1))} for purpose in PURPOSES)
    assert tuning
    assert measuring
    assert not tuning & measuring
    assert all(purpose_of(file) == "measuring" for file in measuring)


def test_a_key_within_a_token_is_told_from_one_at_its_end() -> None:
    typing = Typing(Place("shapes.py", "x"), "return", frozenset({3, 6}), (0.1,) * 6)
    found = [stroke(typing, key, exchange(timings={"draft_n": 5, "draft_n_accepted": 4})) for key in (2, 3)]
    assert [one.in_token for one in found] == [True, False]
    assert (found[0].seconds, found[0].drafted, found[0].accepted) == (1.0, 5, 4)


def strokes(seconds: float, *texts: str) -> list[Stroke]:
    return [Stroke("shapes.py", key, key % 2 == 0, seconds, text, 3, 2, None) for key, text in enumerate(texts)]


def test_typing_is_compared_with_that_without_drafts_and_answers_with_the_reference() -> None:
    found = {OFF: strokes(0.4, "a", "b"), ON: strokes(0.1, "a", "c"), LLAMA: strokes(0.8, "d", "e")}
    result = table_of_typing(PATIENT, found, {OFF: OFF, ON: OFF, LLAMA: LLAMA})
    rows = {row[0]: dict(zip(result.columns, row, strict=True)) for row in result.rows}
    assert rows[ON]["times sooner than off"] == pytest.approx(4.0)
    assert rows[ON]["than llama-server"] == pytest.approx(8.0)
    assert [rows[name]["other answers"] for name in found] == [None, 1, None]
    assert rows[ON]["median ms"] == pytest.approx(100.0)
    assert (rows[ON]["drafted"], rows[ON]["accepted"]) == (6, 4)


def made(decoding: float, said: str) -> Made:
    return Made("completion", "shapes.py", 101, decoding, decoding + 1.0, 0.9, 80, 60, said)


def test_the_speed_of_edits_counts_the_tokens_after_the_first() -> None:
    found = {("completion", OFF): [made(2.0, "a")], ("completion", ON): [made(1.0, "b")]}
    result = table_of_edits(found, {OFF: OFF, ON: OFF})
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    assert [row["tokens/s"] for row in rows] == [50.0, 100.0]
    assert [row["times off"] for row in rows] == [1.0, 2.0]
    assert [row["other answers"] for row in rows] == [None, 1]


def test_clients_are_compared_by_all_their_turns_together() -> None:
    turn = {"answers": 2, "drafted": 1, "accepted": 1}
    found = {
        OFF: [turn | {"tokens": 100, "seconds": 1.0, "cpu": 1.0}, turn | {"tokens": 100, "seconds": 3.0, "cpu": 1.0}],
        ON: [turn | {"tokens": 100, "seconds": 1.0, "cpu": 0.5}] * 2,
    }
    assert row("edits", 4, ON, found) == ["edits", 4, ON, 4, 100.0, 2.0, 2.0, 2, 2]


def test_a_reference_is_not_compared_with_itself() -> None:
    some = strokes(1.0, "a", "b")
    assert other_answers(some, some) is None
    assert other_answers(some, None) is None
    assert other_answers(some, strokes(2.0, "a", "b")) == 0


def test_pairs_make_the_interval_of_a_ratio_narrow() -> None:
    chance = random.Random(1)
    without = [chance.uniform(0.5, 2.0) for _ in range(30)]
    drafting = [seconds * chance.uniform(0.99, 1.01) for seconds in without]
    ratio, low, high = compared(without, drafting)
    assert 0.98 < low < ratio < high < 1.02
    alone = interval([without, drafting], ratio_of_sums)
    assert high - low < (alone[1] - alone[0]) / 5
