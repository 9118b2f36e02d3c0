"""Tools' schemas, whatever JSON they are: each has a grammar, what it lacks is named, and what it allows obeys them."""

import json
import random
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest

from pyllmcancel._native import check_grammar
from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.chat.template import ChatForm, chat_form
from pyllmcancel.constraints.gbnf_pattern import LONGEST, gbnf_pattern
from pyllmcancel.constraints.gbnf_schema import MAX_NODES, answer_schema, arguments_schema
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.pausing import no_pause
from pyllmcancel.server.chat.turn import render
from tests.support.gbnf_texts import Grammar
from tests.support.marks import mostly_long

TEMPLATES = Path(__file__).parents[2] / "vendor/llama.cpp/models/templates"
# One of each way in which llama.cpp reads the schemas of tools.
FAMILIES = (
    *("Qwen-Qwen3-0.6B", "Qwen3-Coder", "openai-gpt-oss-120b", "MiniMax-M3", "inclusionai-ling-3.0-flash"),
    *("LFM2-8B-A1B", "Kimi-K3"),
)
TEXT = {"type": "string"}
TREE = {"type": "object", "properties": {"label": TEXT, "kids": {"type": "array", "items": {"$ref": "#"}}}}
A_OR_B = [{"required": ["a"]}, {"required": ["b"]}]

# The schema of one argument, and the keywords in it that no grammar follows.
WHOLE: list[Any] = [
    True, {}, None, {"description": None}, {"type": "null"}, {"const": None}, {"const": {"a": [1, "x"]}},
    {"enum": ["x", 1, None, [True], {}]}, {"type": ["string", "null"]}, {"type": ["object", "array"]},
    {"type": "STRING"}, {"type": "OBJECT", "properties": {"a": {"type": "NUMBER"}}, "required": ["a"]},
    {"type": "string", "nullable": True}, {"type": "any"}, {"type": "string", "minLength": "3", "maxLength": 4.0},
    {"type": "integer", "minimum": "2", "maximum": 7.5}, {"type": "integer", "exclusiveMinimum": 2, "maximum": 3},
    {"type": "integer", "minimum": 2, "exclusiveMinimum": True}, {"type": "integer", "maximum": 1e300},
    {"type": "integer", "minimum": -(2**70)}, {"type": "array"}, {"type": "array", "items": False},
    {"type": "array", "items": True}, {"type": "array", "items": []}, {"type": "array", "items": TEXT, "maxItems": 2},
    {"prefixItems": [TEXT, {"type": "integer"}]}, {"prefixItems": [TEXT], "items": {"type": "null"}, "minItems": 3},
    {"items": [TEXT, True], "additionalItems": False}, {"prefixItems": [TEXT, False]}, {"type": "object"},
    {"type": "object", "properties": {"a": False}}, {"type": "object", "properties": [], "required": None},
    {"type": "object", "properties": {"a": TEXT}, "required": ["a", "b"]}, {"required": ["a"]},
    {"properties": {"a": TEXT, "b": TEXT}, "anyOf": A_OR_B}, {"type": "object", "additionalProperties": TEXT},
    {"type": "object", "properties": {"a": TEXT}, "additionalProperties": True},
    {"type": "object", "unevaluatedProperties": False}, {"allOf": [{"properties": {"a": TEXT}}, {"required": ["a"]}]},
    {"allOf": [{"$ref": "#/$defs/text"}], "description": "pydantic's"}, {"allOf": [True, {"enum": [1, 2]}]},
    {"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [True, False]}, {"oneOf": [TEXT, {"type": "integer"}]},
    {"$ref": "#/$defs/text"}, {"$ref": "#/$defs/a~1b%25c"}, {"$ref": "#named"},
    {"$ref": "https://example.com/inner"}, {"$ref": "#/$defs/list"}, {"$ref": "#/$defs/chain"},
    {"$dynamicRef": "#named"}, {"$ref": "#/$defs/text", "minLength": 2},
    {"type": "string", "pattern": "^[a-z]{2,3}$"}, {"type": "string", "pattern": r"\d+"},
    {"type": "string", "pattern": "^.*$"}, {"type": "string", "pattern": r'^["\\\/]+$'},
    {"type": "string", "format": "date"}, {"type": "object", "properties": {"": TEXT, 'q"]\\^': TEXT, "é😀": TEXT}},
    {"type": "object", "properties": {"a-b": TEXT, "a b": {"type": "null"}}, "required": ["a-b", "a b"]},
]  # fmt: skip
DEFINITIONS = {
    "text": TEXT,
    "a/b%c": {"type": "integer"},
    "anchor": {"$anchor": "named", "type": "boolean"},
    "inner": {"$id": "https://example.com/inner", "$ref": "#/$defs/deep", "$defs": {"deep": {"enum": [1]}}},
    "list": {"type": "object", "properties": {"next": {"$ref": "#/$defs/list"}}},
    "chain": {"$ref": "#/$defs/text"},
    "self": {"anyOf": [{"$ref": "#/$defs/self"}, {"type": "null"}]},
}
# No value obeys the first; validators give up at the second.
ENDLESS: list[Any] = [{"$ref": "#"}, {"anyOf": [{"$ref": "#/$defs/self"}, TEXT]}]
LACKING: list[tuple[Any, list[str]]] = [
    ("text", [""]), ([], [""]), (5, [""]), ({"type": []}, ["type"]), ({"type": 3}, ["type"]),
    ({"type": "date"}, ["type"]), ({"enum": []}, ["enum"]), ({"enum": "x"}, ["enum"]), ({"enum": None}, []),
    ({"type": "string", "enum": [1, 2]}, ["enum"]), ({"enum": [10**30]}, ["enum"]), ({"not": {}}, ["not"]),
    ({"if": TEXT, "then": {}, "else": {}}, ["if", "then", "else"]), ({"anyOf": []}, ["anyOf"]),
    ({"anyOf": {}}, ["anyOf"]), ({"oneOf": [TEXT, {"const": "x"}]}, ["oneOf"]), ({"allOf": 5}, ["allOf"]),
    ({"$ref": "https://elsewhere.example/x"}, ["$ref"]), ({"$ref": "#/$defs/none"}, ["$ref"]), ({"$ref": 5}, ["$ref"]),
    ({"$ref": "http://[bad"}, ["$ref"]), ({"$ref": "#/$defs/text/0/99999999999999999999"}, ["$ref"]),
    ({"type": "number", "minimum": 0.5}, ["minimum"]), ({"type": "integer", "multipleOf": 3}, ["multipleOf"]),
    ({"type": "integer", "minimum": 5, "maximum": 1}, ["minimum", "maximum"]),
    ({"type": "integer", "minimum": 10**15}, ["minimum"]), ({"type": "integer", "minimum": "x"}, ["minimum"]),
    ({"type": "string", "minLength": -1}, ["minLength"]), ({"type": "string", "minLength": True}, ["minLength"]),
    ({"type": "string", "minLength": 3, "maxLength": 1}, ["minLength", "maxLength"]),
    ({"type": "string", "pattern": "(?=a)"}, ["pattern"]), ({"type": "string", "pattern": "["}, ["pattern"]),
    ({"type": "string", "pattern": "^(a*)*$"}, ["pattern"]), ({"type": "string", "pattern": "a" * 10**4}, ["pattern"]),
    ({"type": "string", "pattern": "^a$", "maxLength": 5}, ["maxLength"]), ({"format": "email"}, ["format"]),
    ({"type": "array", "uniqueItems": True}, ["uniqueItems"]), ({"contains": True}, ["contains"]),
    ({"type": "array", "minItems": 1e400}, ["minItems"]), ({"maxProperties": 0}, ["maxProperties"]),
    ({"type": "object", "patternProperties": {"^a": TEXT}}, ["patternProperties"]),
    ({"type": "object", "propertyNames": {"maxLength": 3}}, ["propertyNames"]),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
    ({"type": "object", "properties": 5}, ["properties"]), ({"type": "object", "required": "a"}, ["required"]),
    ({"type": "object", "additionalProperties": False, "required": ["a"]}, ["required"]),
    ({"allOf": [{"properties": {"a": {}}}], "additionalProperties": False}, ["additionalProperties"]),
    ({"type": "object", "properties": {"x" * 300: TEXT}}, ["properties"]),
]  # fmt: skip


def arguments(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": DEFINITIONS}


@pytest.fixture(scope="module", params=FAMILIES)
def functions(request: pytest.FixtureRequest) -> Functions:
    return opened(request.param)


def opened(name: str) -> Functions:
    functions = Functions()
    functions.open_template((TEMPLATES / f"{name}.jinja").read_text("utf-8"), "<s>", "</s>", "")
    return functions


def form_of(functions: Functions, *schemas: Any, **inputs: Any) -> ChatForm:
    tools = [
        {"type": "function", "function": {"name": f"f{place}", "parameters": schema}}
        for place, schema in enumerate(schemas)
    ]
    question = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required", **inputs}
    return chat_form(question, json.loads(functions.apply_template(question)))


@pytest.mark.parametrize("functions", mostly_long(FAMILIES, "Qwen-Qwen3-0.6B"), indirect=True)
def test_every_schema_has_a_grammar(functions: Functions) -> None:
    for schema in [*WHOLE, *ENDLESS, *(schema for schema, _ in LACKING)]:
        for given in (arguments(schema), schema):
            form = form_of(functions, given)
            assert form.grammar, given
            compiled_module().check_grammar(form.grammar)


@pytest.mark.parametrize(("schema", "lost"), [*((schema, []) for schema in WHOLE), *LACKING], ids=repr)
def test_what_no_grammar_follows_is_named(schema: Any, lost: list[str]) -> None:
    if schema == []:
        lost = [""]
    paths = [f"properties.x.{path}" if path else "properties.x" for path in lost]
    assert arguments_schema(arguments(schema))[1] == paths
    assert answer_schema({**schema, "$defs": DEFINITIONS} if isinstance(schema, dict) else schema)[1] == lost


@pytest.mark.parametrize(
    "schema", mostly_long(WHOLE, *(schema for schema in WHOLE if repr(schema).startswith("{'type'"))), ids=repr
)
def test_all_that_a_grammar_allows_obeys_the_schema(schema: Any) -> None:
    chance = random.Random(1)
    grammar = Grammar(form_of(QWEN, arguments(schema)).grammar)
    valid = arguments({} if schema is None else as_meant(schema))
    for _ in range(20):
        jsonschema.validate(json.loads(grammar.text("tool-f0-schema", chance)), valid)


QWEN = opened(FAMILIES[0])


def as_meant(schema: Any) -> Any:
    """In JSON Schema's own words."""
    if not isinstance(schema, dict):
        return schema
    found = {key: value for key, value in schema.items() if value is not None or key == "const"}
    if isinstance(found.get("type"), str):
        found["type"] = found["type"].lower()
    if found.pop("nullable", False):
        found["type"] = [found["type"], "null"]
    if found.get("type") == "any":
        del found["type"]
    for keyword in ("minimum", "minLength"):
        if keyword in found:
            found[keyword] = int(found[keyword])
    if found.get("exclusiveMinimum") is True:
        found["exclusiveMinimum"] = found.pop("minimum")
    if found.get("items") == []:
        del found["items"]
    if isinstance(found.get("items"), list):
        found["prefixItems"] = found.pop("items")
        found["items"] = found.pop("additionalItems", True)
    if found.get("properties") == []:
        found["properties"] = {}
    if "properties" in found:
        found["properties"] = {name: as_meant(each) for name, each in found["properties"].items()}
    return found


def test_the_template_sees_the_tools_as_they_were(functions: Functions) -> None:
    for extra in (True, {"x-note": "a mark that only this schema has"}):
        prompt = form_of(functions, {"type": "object", "properties": {"extra": extra, "é": {"$ref": "#"}}}).prompt
        assert "$defs" not in prompt
        assert "extra" in prompt


def test_a_schema_that_is_its_own_part_is_enforced() -> None:
    grammar = Grammar(form_of(QWEN, TREE).grammar)
    texts = [json.loads(grammar.text("tool-f0-schema", random.Random(seed))) for seed in range(50)]
    assert any(kid.get("kids") for text in texts for kid in text.get("kids", ()))
    for text in texts:
        jsonschema.validate(text, {**TREE, "additionalProperties": False})


def test_an_alternative_that_is_the_whole_itself_adds_nothing() -> None:
    schema, lost = arguments_schema(arguments({"$ref": "#/$defs/self"}))
    assert schema["$defs"] == {"d0": {"type": "null"}}
    assert lost == []


def test_definitions_of_one_name_are_each_their_own_tools() -> None:
    one, other = ({"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"const": word}}} for word in ("A", "B"))
    grammar = Grammar(form_of(QWEN, one, other).grammar)
    texts = [grammar.text(f"tool-f{n}-schema", random.Random(seed)) for n in range(2) for seed in range(20)]
    assert not any('"B"' in text for text in texts[:20])
    assert any('"B"' in text for text in texts[20:])


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"properties": {f"p{n}": TEXT}, "anyOf": [{"title": f"{n}"}]} for n in range(MAX_NODES)]},
        {
            "$ref": "#/$defs/a0",
            "$defs": {
                f"a{n}": {
                    "properties": {"x": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}], "minProperties": 0}},
                    "anyOf": [{"required": ["x"]}, {"required": ["y"]}, {"required": [f"z{n}"]}],
                }
                for n in range(500)
            },
        },
        {"properties": {f"p{n}": {"type": "array", "items": [TEXT] * 90} for n in range(60)}},
    ],
    ids=["alternatives", "nested", "lists"],
)
def test_a_schema_that_is_too_large_costs_its_own_tool_only(schema: Any) -> None:
    form = form_of(QWEN, arguments(schema), arguments({"const": 1}))
    compiled_module().check_grammar(form.grammar)
    assert len(form.unenforced[0]) > 0
    assert form.unenforced[1] == ()


def test_many_properties_that_may_be_left_out_are_enforced_as_far_as_there_is_time() -> None:
    schema, lost = arguments_schema({"type": "object", "properties": {f"p{n}": TEXT for n in range(1000)}})
    assert lost == ["properties"]
    assert len(schema["properties"]) > 100
    assert schema["additionalProperties"] is True


def test_alternatives_of_all_arguments_become_one_object() -> None:
    """Some forms of calls name each argument, and know no others."""
    one, other = ({"type": "object", "properties": {name: TEXT, "both": TEXT}} for name in ("a", "b"))
    schema, lost = arguments_schema({"oneOf": [one, other]})
    assert set(schema["properties"]) == {"a", "b", "both"}
    assert lost == ["oneOf"]


def test_without_a_schema_there_are_no_arguments() -> None:
    assert arguments_schema(None) == arguments_schema({}) == ({"type": "object", "properties": {}}, [])


def test_names_of_any_length_fit_into_a_grammar() -> None:
    inner: Any = TEXT
    for place in range(12):
        inner = {"type": "object", "properties": {f"a rather long name of a property, {place}": inner}}
    form = form_of(QWEN, inner)
    compiled_module().check_grammar(form.grammar)
    assert form.unenforced == ((),)


@pytest.mark.parametrize("name", ["openai-gpt-oss-120b", "Qwen-Qwen3-0.6B"])
def test_the_schema_of_an_answer_is_made_ready_too(name: str) -> None:
    schema = {"type": "object", "properties": {"extra": True, "mail": {"type": "string", "format": "email"}}}
    form = form_of(opened(name), json_schema=schema, tool_choice="auto")
    assert form.unenforced_of_answer == ("properties.mail.format",)
    compiled_module().check_grammar(form.grammar)


@pytest.mark.parametrize(
    "own", [{"tools": [{}]}, {"json_schema": {}, "tools": [{}]}, {"chat_template_kwargs": {"a": 1}}, {}]
)
def test_what_a_template_remembers_of_a_requests_own_inputs_is_its_owners(
    own: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyllmcancel.server.chat.turn.template_inputs", lambda *_: own)
    state, body = Mock(**{"chat_template.apply.side_effect": lambda inputs, _: inputs}), Mock(messages=[])
    found = [render(state, body, owner, no_pause) for owner in ("a", "b")]
    assert (found[0] == found[1]) is not bool(own)


def allowed(pattern: str) -> list[str]:
    """Texts that the rewritten pattern allows, read as a rule as llama.cpp writes it."""
    written = gbnf_pattern(pattern)
    rule = f'root ::= "\\"" ({written[1:-1]}) "\\""'
    check_grammar(rule)
    grammar = Grammar(rule)
    return [json.loads(grammar.text("root", random.Random(seed))) for seed in range(50)]


@pytest.mark.parametrize(
    "pattern",
    [
        "^a$", "a", "^a", "a$", "^[a-z0-9_-]+$", r"^\d{4}-\d{2}-\d{2}$", "^.*$", "^.{2,4}$", "a|^b$", "^a|b$",
        "^(?:x|y){2,3}?$", "^(?P<year>[0-9]+)$", '^[^"]+$', r"^[\w.]+@[\w.]+$", r"^\x41\u0042$", r"^[\[\]\\]$",
        r"^\/api\/", "^(a|b(c|d)?)*$", "^[-a]$", "^[a-]$", r"^a\.b$", "^é😀$", "^[^a-z]?$", "", "^ $", "^a{3}b{1,}$",
        r'"', r"\\", r"^\n$", r"^\s*$", "^[^x]*$",
    ],
)  # fmt: skip
def test_what_a_grammar_allows_matches_as_json_spells_it(pattern: str) -> None:
    for text in allowed(pattern):
        assert re.search(pattern.replace(r"\s", r"[\s\ufeff]"), text), text


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[", "^[]$", "[z-a]", r"[a-\d]", "*", "^*$", "a**", "a{2}{3}", "{1}", "a^b", "$a", "(^a)",
        "(?=a)", "(?!a)", "(?<=a)", "(?i)a", r"\bword\b", r"(a)\1", r"\p{L}", r"\k<x>", "\\", "[\\", "(a*)*", "(a?|b)+",
        "(|a)", "()", r"\ud800", r"\u{110000}", "(" * 40 + "a" + ")" * 40, "a" * (LONGEST + 1), r"^[\x00]$",
    ],
)  # fmt: skip
def test_what_no_grammar_can_follow_is_none(pattern: str) -> None:
    assert gbnf_pattern(pattern) is None
