"""The measurement of drafts: texts kept apart, ways to type, requests for edits, statistics and tables."""

from __future__ import annotations

import ast
import random
from typing import Any

import pytest

from bench.drafting.__main__ import SCENARIOS, parse
from bench.drafting.edits import FORMS, PREDICTED, Made, edits
from bench.drafting.edits import table as table_of_edits
from bench.drafting.results import (
    Result,
    interval,
    other_answers,
    ratio_of_sums,
)
from bench.drafting.servers import LLAMA, OFF, ON, contenders, drafts, in_turn, said
from bench.drafting.texts import PREFIX, PURPOSES, Function, Place, functions, place_in, purpose_of
from bench.drafting.throughput import compared, row
from bench.drafting.typing_along import HURRIED, PATIENT, SAMPLED, Stroke, Typing, stroke
from bench.drafting.typing_along import table as table_of_typing
from pyllmcancel.bench.client import Ask, Exchange, Outcome

FUNCTION = Function(
    "shapes.py",
    "area",
    ("class Square:", "    side = 1", ""),
    ("    def area(self):", *(f"        total = {n}" for n in range(11)), "        return total"),
)


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


# -- texts -------------------------------------------------------------------------------------------------------------


def test_no_file_serves_both_purposes() -> None:
    tuning, measuring = ({one.file for one in functions(purpose, random.Random(1))} for purpose in PURPOSES)
    assert tuning
    assert measuring
    assert not tuning & measuring
    assert all(purpose_of(file) == "measuring" for file in measuring)


def test_the_same_seed_chooses_the_same_functions() -> None:
    one, other = (functions("tuning", random.Random(2))[:9] for _ in range(2))
    assert one == other
    assert one != functions("tuning", random.Random(3))[:9]


def test_a_function_is_whole_and_loses_the_indentation_of_its_class() -> None:
    for function in functions("tuning", random.Random(1))[:40]:
        (definition,) = ast.parse(function.source).body
        assert isinstance(definition, ast.FunctionDef)
        assert definition.name == function.name


def test_a_place_is_at_the_beginning_of_a_line_within_the_function() -> None:
    for function in functions("measuring", random.Random(1))[:40]:
        prefix = place_in(function, random.Random(1)).prefix
        whole = "\n".join([*function.before, *function.lines, ""])
        assert prefix.endswith("\n")
        assert len(prefix) <= PREFIX
        assert f"\n{prefix}" in f"\n{whole}"


# -- typing ------------------------------------------------------------------------------------------------------------


def test_a_hurried_person_waits_at_each_third_key() -> None:
    assert [key for key in range(1, 10) if HURRIED.waits(key)] == [3, 6, 9]
    assert all(PATIENT.waits(key) for key in range(1, 10))


def test_each_sampled_key_has_a_seed_of_its_own_and_greedy_ones_have_none() -> None:
    seeds = [SAMPLED.fields(key)["seed"] for key in range(5)]
    assert len(set(seeds)) == 5
    assert "seed" not in PATIENT.fields(1)


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


# -- edits -------------------------------------------------------------------------------------------------------------


def test_an_edit_asks_for_the_function_under_its_third_name() -> None:
    edit = next(one for one in edits("tuning", 50, 1) if one.function.name.isidentifier())
    old, before, new = edit.names
    assert edit.prompt.count(f"def {old}(") == edit.prompt.count(f"def {before}(") == 1
    assert f"def {new}(" not in edit.prompt
    assert f"Function `{new}`:" in edit.prompt
    assert edit.messages[-1]["content"].startswith(f"Rename `{before}` to `{new}`")


def test_edits_are_of_functions_that_fit_three_times_into_a_slot() -> None:
    some = edits("measuring", 500, 1)
    assert len(some) > 100
    assert max(len(edit.prompt) for edit in some) < 2 * 1300


def test_only_one_form_brings_a_prediction_and_it_is_the_right_answer() -> None:
    (edit,) = edits("tuning", 1, 1)
    assert [form for form in FORMS if "prediction" in form.fields(edit)] == [PREDICTED]
    assert PREDICTED.fields(edit)["prediction"] == {"type": "content", "content": edit.source(edit.names[2])}


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


# -- answers and statistics --------------------------------------------------------------------------------------------


def test_answers_are_compared_by_their_tokens_where_there_are_some() -> None:
    assert said(exchange(tokens=[5, 6, 7])) == [5, 6, 7]
    assert said(exchange()) == ("ab", 3)


def test_answers_without_drafts_count_none() -> None:
    assert drafts([exchange(), exchange(timings={"predicted_n": 3})]) == {"drafted": 0, "accepted": 0}


def test_a_reference_is_not_compared_with_itself() -> None:
    some = strokes(1.0, "a", "b")
    assert other_answers(some, some) is None
    assert other_answers(some, None) is None
    assert other_answers(some, strokes(2.0, "a", "b")) == 0


def test_each_turn_begins_with_another_server() -> None:
    subjects: dict[str, Any] = {"a": 1, "b": 2, "c": 3}
    assert ["".join(name for name, _ in in_turn(subjects, turn)) for turn in range(4)] == ["abc", "bca", "cab", "abc"]


def test_pairs_make_the_interval_of_a_ratio_narrow() -> None:
    chance = random.Random(1)
    without = [chance.uniform(0.5, 2.0) for _ in range(30)]
    drafting = [seconds * chance.uniform(0.99, 1.01) for seconds in without]
    ratio, low, high = compared(without, drafting)
    assert 0.98 < low < ratio < high < 1.02
    alone = interval([without, drafting], ratio_of_sums)
    assert high - low < (alone[1] - alone[0]) / 5


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_table_shows_what_was_not_measured_as_a_dash() -> None:
    result = Result("some", ("name", "ms"), [["a", None], ["b", 12.34]])
    assert " ".join(result.text().split()) == "some name ms a - b 12.3"


def test_only_known_scenarios_are_run() -> None:
    assert parse(["--model", "m.gguf"]).scenarios == list(SCENARIOS)
    with pytest.raises(SystemExit):
        parse(["speed", "--model", "m.gguf"])


def test_ours_is_started_with_the_given_options_and_llama_server_with_each_kind_of_draft() -> None:
    found = contenders(["--spec-type", "none"], [])
    assert found[OFF].options == ("--spec-type", "none")
    assert found[ON].options == ()
    assert [one.options for name, one in found.items() if name.startswith(f"{LLAMA} ")] == [
        ("--spec-type", "ngram-simple"),
        ("--spec-type", "ngram-mod"),
    ]
