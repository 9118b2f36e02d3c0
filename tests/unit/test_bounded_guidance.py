"""Schemas that exceed the limits of time or memory, or make no sense: an error that says which field, and why."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from pyllmcancel.constraints.bounded import BoundedGuidance, NamedSchema, is_plain
from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.errors import InvalidRequestError
from tests.support.fake_model import Model
from tests.support.marks import mostly_long


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
def guidance() -> Iterator[BoundedGuidance]:
    made = BoundedGuidance(Guidance(cast("Any", Model())))
    yield made
    made.close()


def compiled(guidance: BoundedGuidance, schema: Mapping[str, Any], **options: Any) -> Any:
    return guidance.compile(NamedSchema(schema, "where"), **options)


@pytest.mark.parametrize(
    "schema",
    mostly_long(TOO_MUCH.values(), TOO_MUCH["a large divisor"], TOO_MUCH["a billion times"]),
    ids=TOO_MUCH,
)
def test_what_is_too_much_or_senseless_is_its_error(guidance: BoundedGuidance, schema: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        compiled(guidance, schema)
    assert caught.value.param == "where"
    assert 0 < len(str(caught.value)) < 600
    assert "panic" not in str(caught.value)


@pytest.mark.parametrize("schema", ORDINARY.values(), ids=ORDINARY)
def test_what_is_ordinary_compiles(guidance: BoundedGuidance, schema: Mapping[str, Any]) -> None:
    assert compiled(guidance, schema).new().mask().any()


def test_a_caller_that_gives_up_ends_the_attempt(guidance: BoundedGuidance) -> None:
    class GivenUp(Exception):  # noqa: N818
        pass

    def pause() -> None:
        raise GivenUp

    with pytest.raises(GivenUp):
        compiled(guidance, TOO_MUCH["a large divisor"], pause=pause)


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
