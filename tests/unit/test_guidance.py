"""Constraints by schema and grammar, over the fake model's vocabulary: 256 bytes, and a token that ends an answer."""

from typing import Any, cast

import numpy as np
import pytest

from pyllmcancel.constraints.guidance import Guidance, Guide, json_rule
from pyllmcancel.errors import ConstraintError, InvalidRequestError
from tests.support.fake_model import EOS, N_VOCAB, Model

AGE: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    return Guidance(cast("Any", Model()))


def allowed(constraint: Guide) -> set[int]:
    mask = constraint.mask()
    assert mask.dtype == np.uint32
    assert mask.shape == ((N_VOCAB + 31) // 32,)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[N_VOCAB:].any(), "there are no such tokens"
    return set(np.flatnonzero(bits).tolist())


def obeys(guidance: Guidance, schema: dict[str, Any], text: str) -> bool:
    """Return whether a whole text is allowed, byte by byte, and may end there."""
    constraint = guidance.compile(f"start: {json_rule(schema)}", "x").new()
    for byte in text.encode():
        if byte not in allowed(constraint):
            return False
        constraint.accept(byte)
    return EOS in allowed(constraint)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"age":1}', True),
        ('{\n  "age": 7\n}', True),
        ('{"age": "7"}', False),
        ('{"age": 1.5}', False),
        ('{"age": 1, "more": 2}', False),
        ("{}", False),
        ('{"age":' + " " * 50 + "1}", False),
        ("{" + "\n" * 5 + '"age": 1}', False),
    ],
)
def test_a_schema_decides_byte_by_byte(guidance: Guidance, text: str, expected: bool) -> None:
    assert obeys(guidance, AGE, text) is expected


def test_an_answer_may_end_when_and_only_when_it_is_complete(guidance: Guidance) -> None:
    constraint = guidance.compile(f"start: {json_rule(AGE)}", "x").new()
    for byte in b'{"age": 1':
        assert EOS not in allowed(constraint)
        assert not constraint.accept(byte)
    assert ord("}") in allowed(constraint)
    assert constraint.accept(ord("}")), "nothing may follow, so it is complete"
    assert allowed(constraint) == {EOS}


def test_an_answer_that_may_end_and_may_go_on_is_not_complete(guidance: Guidance) -> None:
    constraint = guidance.compile('start: "a" "b"?', "x").new()
    assert not constraint.accept(ord("a"))
    assert allowed(constraint) == {ord("b"), EOS}
    assert constraint.accept(EOS)


def test_what_is_not_allowed_is_an_error_of_the_constraint(guidance: Guidance) -> None:
    constraint = guidance.compile('start: "ab"', "x").new()
    with pytest.raises(ConstraintError):
        constraint.accept(ord("x"))
    with pytest.raises(ConstraintError) as failed:
        constraint.mask()
    assert failed.value.param == "x"


def test_a_grammar_that_is_none_is_refused(guidance: Guidance) -> None:
    with pytest.raises(InvalidRequestError, match="unknown name") as caught:
        guidance.compile("start: nothing", "tools")
    assert caught.value.param == "tools"


@pytest.mark.parametrize("grammar", ['start: "a" & "b"', "start: /a/ & /b/"])
def test_a_grammar_that_allows_no_answer_is_refused(guidance: Guidance, grammar: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        guidance.compile(grammar, "tools")
    assert caught.value.param == "tools"


def test_a_schema_that_llguidance_panics_about_is_refused(guidance: Guidance) -> None:
    # It quotes the first 100 bytes of what is wrong, which end in the middle of a letter for one of the two.
    for name in ("", "x"):
        with pytest.raises(InvalidRequestError) as refusal:
            guidance.check_schema({"required": {name: "ö" * 80}}, "schema")
        assert refusal.value.param == "schema"


@pytest.mark.parametrize("schema", [True, False])
def test_a_schema_may_be_a_truth_value(guidance: Guidance, schema: bool) -> None:
    rule = f"start: {json_rule(schema)}"
    if schema:
        assert ord("{") in allowed(guidance.compile(rule, "x").new())
    else:
        with pytest.raises(InvalidRequestError):
            guidance.compile(rule, "x")


def test_a_model_without_an_end_of_its_answers_still_completes(guidance: Guidance) -> None:
    class Endless(Model):
        def is_eog(self, token: int) -> bool:
            return False

    constraint = Guidance(cast("Any", Endless())).compile('start: "ab"', "x").new()
    assert not constraint.accept(ord("a"))
    assert constraint.accept(ord("b"))
