"""Constraints by schema and grammar over the fake model's vocabulary: their limits, and what is left out of them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import pytest

from pyllmcancel.constraints.bounded import BoundedGuidance, NamedSchema, is_plain
from pyllmcancel.constraints.guidance import Guidance, Guide, json_rule
from pyllmcancel.constraints.unenforced import enforceable, guidance_knows, unenforced
from pyllmcancel.errors import ConstraintError, InvalidRequestError
from tests.support.fake_model import EOS, N_VOCAB, Model
from tests.support.marks import mostly_long

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
    open_ended = guidance.compile('start: "a" "b"?', "x").new()
    assert not open_ended.accept(ord("a"))
    assert allowed(open_ended) == {ord("b"), EOS}
    assert open_ended.accept(EOS)


def test_what_is_not_allowed_is_an_error_of_the_constraint(guidance: Guidance) -> None:
    constraint = guidance.compile('start: "ab"', "x").new()
    with pytest.raises(ConstraintError):
        constraint.accept(ord("x"))
    with pytest.raises(ConstraintError) as failed:
        constraint.mask()
    assert failed.value.param == "x"


@pytest.mark.parametrize("grammar", ["start: nothing", 'start: "a" & "b"', "start: /a/ & /b/"])
def test_a_grammar_that_is_none_or_allows_no_answer_is_refused(guidance: Guidance, grammar: str) -> None:
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


# -- bounds ------------------------------------------------------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def patterns(count: int) -> list[dict[str, str]]:
    return [{"type": "string", "pattern": f".*{chr(97 + n % 26)}.{{20}}"} for n in range(count)]


# The first two never returned from llguidance, with 2 GB after a minute.
TOO_MUCH: dict[str, Mapping[str, Any]] = {
    "40 patterns at once": {"allOf": patterns(40)},
    "a large divisor": {"type": "integer", "multipleOf": 123456789},
    "a billion times": {"type": "string", "pattern": "^a{1000000000}$"},
    "ten long constants": {"enum": [chr(97 + n) * 700_000 for n in range(10)]},
    "a tiny divisor": {"type": "number", "multipleOf": 1e-300},
    "itself": {"$ref": "#"},
    "each other": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "70 objects inside each other": nested(70),
    "100,000 constants": {"enum": [f"v{n}" for n in range(100_000)]},
    "20,000 properties": {"type": "object", "properties": {f"p{n}": {} for n in range(20_000)}},
    "5,000 parentheses": {"type": "string", "pattern": "(" * 5_000 + "a" + ")" * 5_000},
    "an infinite range": {"type": "number", "minimum": -1e300, "maximum": 1e300},
    "nothing": {"type": "string", "pattern": "^a$", "minLength": 2},
    "no schema": {"type": "whatever"},
    # llguidance recurses until the stack is full: in the server's own process that would be the end of the server.
    "the least integer": {"const": -(2**63)},
    "the least integer among others": {"properties": {"a": {"enum": [0, [-(2**63)]]}}},
}
ORDINARY: dict[str, Mapping[str, Any]] = {
    "a pattern": {"type": "string", "pattern": "^[a-z]{1,40}$", "maxLength": 20},
    "a divisor": {"type": "number", "multipleOf": 0.25},
    "a tree": {"$defs": {"t": {"properties": {"l": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"},
    "1,000 constants": {"enum": [f"v{n}" for n in range(1_000)]},
    "a long length": {"type": "string", "maxLength": 100_000},
    "alternatives": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}


@pytest.fixture(scope="module")
def bounded() -> Iterator[BoundedGuidance]:
    made = BoundedGuidance(Guidance(cast("Any", Model())))
    yield made
    made.close()


def compiled(bounded: BoundedGuidance, schema: Mapping[str, Any], **options: Any) -> Any:
    return bounded.compile(NamedSchema(schema, "where"), **options)


@pytest.mark.parametrize(
    "schema",
    mostly_long(TOO_MUCH.values(), TOO_MUCH["a large divisor"], TOO_MUCH["a billion times"]),
    ids=TOO_MUCH,
)
def test_what_is_too_much_or_senseless_is_its_error(bounded: BoundedGuidance, schema: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiled(bounded, schema)
    assert caught.value.param == "where"
    assert 0 < len(str(caught.value)) < 600
    assert "panic" not in str(caught.value)


@pytest.mark.parametrize("schema", ORDINARY.values(), ids=ORDINARY)
def test_what_is_ordinary_compiles(bounded: BoundedGuidance, schema: Mapping[str, Any]) -> None:
    assert compiled(bounded, schema).new().mask().any()


def test_a_caller_that_gives_up_ends_the_attempt(bounded: BoundedGuidance) -> None:
    class GivenUp(Exception):  # noqa: N818
        pass

    def pause() -> None:
        raise GivenUp

    with pytest.raises(GivenUp):
        compiled(bounded, TOO_MUCH["a large divisor"], pause=pause)


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, True),
        ({"type": "array", "items": {"enum": [1, 2]}, "description": "pattern"}, True),
        ({"type": "object", "properties": {"pattern": {"type": "string"}}}, True),
        ({"type": "string", "pattern": "a"}, False),
        ({"type": "array", "items": {"multipleOf": 3}}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, False),
        ({"const": "x" * 5_000}, False),
        ({"enum": [1 - 2**53, 2**53 - 1, {"a": [None, True]}]}, True),
        ({"const": -(2**63)}, False),
        ({"const": json.loads("[" * 100 + "]" * 100)}, False),
        (nested(30), False),
    ],
)
def test_what_is_sure_to_cost_little_needs_no_other_process(schema: Mapping[str, Any], plain: bool) -> None:
    assert is_plain(schema) is plain


# -- what is not enforced ----------------------------------------------------------------------------------------------


EMAIL = r"^(?!\.)(?!.*\.\.)[a-z]+@[a-z]+\.[a-z]+$"


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ({"type": "string"}, []),
        ({"properties": {"mail": {"type": "string", "pattern": EMAIL}}}, ["properties.mail.pattern"]),
        ({"type": "string", "format": "email"}, []),
        ({"type": "string", "format": "date"}, []),
        ({"type": "string", "format": "tone"}, ["format"]),
        ({"type": "string", "pattern": "^a+$"}, []),
        ({"type": "string", "pattern": "a+"}, []),
        ({"type": "number", "minimum": 0.5}, []),
        ({"items": {"not": {}}, "uniqueItems": True}, ["items.not", "uniqueItems"]),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, ["anyOf[1].if", "anyOf[1].then"]),
        ({"oneOf": [{"type": "string"}, {"const": "x"}]}, ["oneOf"]),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, []),
        ({"$defs": {"a": {"multipleOf": 3}}, "$ref": "#/$defs/a"}, []),
        ({"properties": {"not": {"type": "string"}}, "required": ["not"]}, []),
        ({"const": {"not": 1}, "enum": [{"if": 1}], "default": {"not": 2}}, []),
        ({"description": "x", "x-order": 1, "title": "not"}, []),
        (
            {"additionalProperties": {"contains": {}}, "items": [{"not": {}}]},
            ["additionalProperties.contains", "items[0].not"],
        ),
    ],
)
def test_what_cannot_be_enforced_is_found(schema: dict[str, Any], paths: list[str]) -> None:
    assert list(unenforced(schema, guidance_knows)) == paths
    left = unenforced(enforceable(schema, guidance_knows), guidance_knows)
    assert [path for path in left if not path.endswith("oneOf")] == []


@pytest.mark.parametrize(
    "schema", [{"oneOf": 5}, {"oneOf": {"a": {}}}, {"format": ["x"]}, {"format": {}}, {"pattern": 5}]
)
def test_what_is_no_schema_is_not_known(schema: dict[str, Any]) -> None:
    (keyword,) = schema
    assert list(unenforced(schema, guidance_knows)) == [keyword]


def test_all_else_is_left_as_it_was() -> None:
    schema = {"type": "object", "properties": {"a": {"not": {}, "type": "string"}}, "required": ["a"], "not": {}}
    assert enforceable(schema, guidance_knows) == {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    }
    assert enforceable(True, guidance_knows) is True


VALUES: dict[str, Any] = {
    "not": {}, "if": {}, "then": {}, "else": {}, "uniqueItems": True, "contains": {}, "minContains": 1,
    "maxContains": 1, "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}, "propertyNames": {},
    "unevaluatedItems": False, "unevaluatedProperties": False, "$dynamicRef": "#x", "$recursiveRef": "#",
    "multipleOf": 3, "patternProperties": {"^a": {}}, "minProperties": 1, "maxProperties": 2, "minItems": 1,
    "maxItems": 2, "prefixItems": [{}], "minLength": 1, "maxLength": 2, "minimum": 1, "exclusiveMaximum": 9,
    "oneOf": [{"type": "string"}, {"type": "integer"}], "anyOf": [{"type": "string"}], "allOf": [{"type": "string"}],
    "const": 1, "enum": [1], "format": "tone", "pattern": EMAIL,
}  # fmt: skip


@pytest.mark.parametrize("keyword", VALUES)
def test_llguidance_refuses_just_what_is_said_to_be_unknown_to_it(guidance: Guidance, keyword: str) -> None:
    known = guidance_knows(keyword, VALUES[keyword])
    with nullcontext() if known else pytest.raises(InvalidRequestError):
        guidance.check_schema({keyword: VALUES[keyword]}, "test")
