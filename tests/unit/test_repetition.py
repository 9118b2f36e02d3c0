"""The detector of answers that repeat themselves, and the forms that demand a repetition."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pyllmcancel.constraints.guidance import Guidance, PlainBytes, json_rule
from pyllmcancel.engine.repetition import MAX_PERIOD, MIN_PERIODS, demands, period_of
from tests.support.driver import Driver

LONG = list(range(1000, 1000 + MAX_PERIOD))
NESTED = [1, 1, 2, 1, 1, 2, 3]  # a period that has repetitions of its own


@pytest.mark.parametrize(
    ("tokens", "least", "period"),
    [
        ([5] * 256, 256, 1),
        ([5] * 255, 256, 0),
        ([4, *[5] * 255], 256, 0),
        ([*range(100), *[1, 2, 3] * 86], 256, 3),
        (NESTED * 40, 256, len(NESTED)),
        (LONG * MIN_PERIODS, 256, MAX_PERIOD),
        (LONG * (MIN_PERIODS - 1), 256, 0),
        ([*LONG, 7] * MIN_PERIODS, 256, 0),  # one token too long
        (list(range(2_000)), 256, 0),
        ([0xD800, 0xDFFF, 1_000_000] * 100, 256, 3),  # ids that are no characters
        ([], 256, 0),
        ([9] * MIN_PERIODS, 1, 1),
    ],
)
def test_a_period_is_found_with_enough_tokens_and_periods(tokens: Sequence[int], least: int, period: int) -> None:
    assert period_of(tokens, least) == period


def text_of(schema: Mapping[str, Any]) -> str:
    return f"start: {json_rule({'type': 'object', 'properties': {'a': schema}, 'required': ['a']})}"


@pytest.mark.parametrize(
    ("rule", "begun", "period", "demanded"),
    [
        (text_of({"type": "string"}), '{"a":"x', "foo ", False),
        (text_of({"type": "string", "maxLength": 900}), '{"a":"x', "foo ", True),
        (text_of({"type": "array", "items": {"type": "integer"}}), '{"a":[0', ",0", False),
        (text_of({"type": "array", "items": {"type": "integer"}, "minItems": 600}), '{"a":[0', ",0", True),
        (text_of({"type": "array", "items": {"const": 0}, "minItems": 600, "maxItems": 600}), '{"a":[0', ",0", True),
        ("start: /(ab)*/", "", "ab", False),
        ("start: /(ab){900}/", "", "ab", True),
    ],
)
def test_a_repetition_is_the_forms_if_the_form_would_end_it(rule: str, begun: str, period: str, demanded: bool) -> None:
    constraint = Guidance(PlainBytes()).compile(rule, "form").new()  # type: ignore[arg-type]
    for token in (begun + period * 100).encode():
        constraint.accept(token)
    assert demands(constraint, period.encode()) is demanded


@pytest.mark.parametrize(
    ("options", "cut"),
    [
        ({"repetition_limit": 32}, True),
        ({}, False),
        ({"repetition_limit": 32, "ignore_eos": True}, False),
        ({"repetition_limit": 32, "grammar": 'root ::= "ab"*'}, False),
    ],
)
def test_an_answer_ends_by_its_repetition_unless_its_end_is_forbidden_or_a_grammar_forms_it(
    driver: Driver, options: dict[str, Any], cut: bool
) -> None:
    driver.model.answers[b"question"] = b"ab" * 30
    expected = b"ab" * (16 if cut else 30)
    tracked = driver.answered("question", max_tokens=60, expected=expected, **options)
    assert (tracked.ending.limit == "repetition") is cut
