"""Schemas of which a part cannot be enforced: found by path, and what is left without it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.constraints.unenforced import Knows, enforceable, gbnf_knows, guidance_knows, unenforced
from pyllmcancel.errors import InvalidRequestError
from tests.support.fake_model import Model

EMAIL = r"^(?!\.)(?!.*\.\.)[a-z]+@[a-z]+\.[a-z]+$"


@pytest.mark.parametrize(
    ("schema", "of_guidance", "of_gbnf"),
    [
        ({"type": "string"}, [], []),
        (
            {"properties": {"mail": {"type": "string", "pattern": EMAIL}}},
            ["properties.mail.pattern"],
            ["properties.mail.pattern"],
        ),
        ({"type": "string", "format": "email"}, [], ["format"]),
        ({"type": "string", "format": "date"}, [], []),
        ({"type": "string", "format": "tone"}, ["format"], ["format"]),
        ({"type": "string", "pattern": "^a+$"}, [], []),
        ({"type": "string", "pattern": "a+"}, [], ["pattern"]),
        ({"type": "number", "minimum": 0.5}, [], ["minimum"]),
        ({"type": "integer", "minimum": 1}, [], []),
        ({"items": {"not": {}}, "uniqueItems": True}, ["items.not", "uniqueItems"], ["items.not", "uniqueItems"]),
        ({"anyOf": [{}, {"if": {}, "then": {}}]}, ["anyOf[1].if", "anyOf[1].then"], ["anyOf[1].if", "anyOf[1].then"]),
        ({"oneOf": [{"type": "string"}, {"const": "x"}]}, ["oneOf"], ["oneOf"]),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, [], []),
        ({"$defs": {"a": {"multipleOf": 3}}, "$ref": "#/$defs/a"}, [], ["$defs.a.multipleOf"]),
        ({"properties": {"not": {"type": "string"}}, "required": ["not"]}, [], []),
        ({"const": {"not": 1}, "enum": [{"if": 1}], "default": {"not": 2}}, [], []),
        ({"description": "x", "x-order": 1, "title": "not"}, [], []),
        (
            {"additionalProperties": {"contains": {}}, "items": [{"not": {}}]},
            ["additionalProperties.contains", "items[0].not"],
            ["additionalProperties.contains", "items[0].not"],
        ),
    ],
)
def test_what_cannot_be_enforced_is_found(schema: dict[str, Any], of_guidance: list[str], of_gbnf: list[str]) -> None:
    assert list(unenforced(schema, guidance_knows)) == of_guidance
    assert list(unenforced(schema, gbnf_knows)) == of_gbnf
    for knows in (guidance_knows, gbnf_knows):
        left = [path for path in unenforced(enforceable(schema, knows), knows) if not path.endswith("oneOf")]
        assert left == []


@pytest.mark.parametrize(
    "schema", [{"oneOf": 5}, {"oneOf": {"a": {}}}, {"format": ["x"]}, {"format": {}}, {"pattern": 5}]
)
def test_what_is_no_schema_is_not_known(schema: dict[str, Any]) -> None:
    (keyword,) = schema
    for knows in (guidance_knows, gbnf_knows):
        assert list(unenforced(schema, knows)) == [keyword]


@pytest.mark.parametrize("knows", [guidance_knows, gbnf_knows])
def test_all_else_is_left_as_it_was(knows: Knows) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {}, "type": "string"}}, "required": ["a"], "not": {}}
    assert enforceable(schema, knows) == {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
    }
    assert enforceable(True, knows) is True


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
def test_llguidance_refuses_just_what_is_said_to_be_unknown_to_it(keyword: str) -> None:
    guidance = Guidance(cast("Any", Model()))
    try:
        guidance.check_schema({keyword: VALUES[keyword]}, "test")
        refused = False
    except InvalidRequestError:
        refused = True
    assert refused is not guidance_knows(keyword, VALUES[keyword])
