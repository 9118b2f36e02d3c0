"""Schemas of which a part cannot be enforced: found by path, and what is left without it."""

from typing import Any, cast

import pytest

from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.constraints.unenforced import enforceable, guidance_knows, unenforced
from pyllmcancel.errors import InvalidRequestError
from tests.support.fake_model import Model

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
def test_llguidance_refuses_just_what_is_said_to_be_unknown_to_it(keyword: str) -> None:
    guidance = Guidance(cast("Any", Model()))
    try:
        guidance.check_schema({keyword: VALUES[keyword]}, "test")
        refused = False
    except InvalidRequestError:
        refused = True
    assert refused is not guidance_knows(keyword, VALUES[keyword])
