"""The forms in which models call tools: what their grammars allow, and what a parser makes of it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, cast

import pytest

from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.constraints.tool_formats import (
    GENERIC,
    HERMES,
    LLAMA3,
    MISTRAL,
    MISTRAL_V11,
    Function,
    ToolFormat,
    literal,
    object_schema,
    tool_format,
)
from tests.support.fake_model import EOS, Model

WEATHER = Function(
    "get_weather", {"properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
)
NOW = Function("now", {"type": "object", "properties": {}, "additionalProperties": False})

# What each family's models write.
CALLS = {
    "hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "llama3": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "mistral": '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}]',
    "mistral-v11": '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    "generic": '{"name": "get_weather", "arguments": {"city": "Paris"}}',
}
TWO_CALLS = {
    "hermes": CALLS["hermes"] + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "mistral": CALLS["mistral"][:-1] + ', {"name": "now", "arguments": {}}]',
    "mistral-v11": CALLS["mistral-v11"] + "[TOOL_CALLS]now[ARGS]{}",
}
FORMATS = {found.name: found for found in (HERMES, LLAMA3, MISTRAL, MISTRAL_V11, GENERIC)}


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    return Guidance(cast("Any", Model()))


def allows(guidance: Guidance, form: ToolFormat, text: str, **options: Any) -> bool:
    """Whether an answer may be this text and no more."""
    write = partial(literal, cast("Any", Model()))
    constraint = guidance.compile(form.grammar([WEATHER, NOW], write, **options), "tools").new()
    return constraint.allows([*text.encode(), EOS])


@pytest.mark.parametrize("name", CALLS)
def test_a_call_as_the_family_writes_it_is_allowed(guidance: Guidance, name: str) -> None:
    assert allows(guidance, FORMATS[name], CALLS[name])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("from_", "to"),
    [("get_weather", "get_water"), ('"Paris"', "7"), ("city", "town"), ('{"city": "Paris"}', "{}"), ("Paris", 'P"')],
)
def test_calls_of_others_or_with_other_arguments_are_not(guidance: Guidance, name: str, from_: str, to: str) -> None:
    assert not allows(guidance, FORMATS[name], CALLS[name].replace(from_, to))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("text", ["", "Hello", "Hello " + CALLS["hermes"]])
def test_text_instead_of_a_call_is_not(guidance: Guidance, name: str, text: str) -> None:
    assert not allows(guidance, FORMATS[name], text)


@pytest.mark.parametrize("name", CALLS)
def test_another_form_of_the_answer_is_allowed_if_it_is_said_so(guidance: Guidance, name: str) -> None:
    assert allows(guidance, FORMATS[name], '{"sum": 3}', answer='%json {"type": "object"}')
    assert allows(guidance, FORMATS[name], CALLS[name], answer='%json {"type": "object"}')


@pytest.mark.parametrize("name", TWO_CALLS)
def test_several_calls_where_the_family_has_a_way_and_the_client_allows_them(guidance: Guidance, name: str) -> None:
    assert allows(guidance, FORMATS[name], TWO_CALLS[name])
    assert not allows(guidance, FORMATS[name], TWO_CALLS[name], parallel=False)


@pytest.mark.parametrize("name", ["llama3", "generic"])
def test_a_family_without_a_way_calls_once(guidance: Guidance, name: str) -> None:
    assert not allows(guidance, FORMATS[name], CALLS[name] + "\n" + CALLS[name])


def test_a_line_feed_behind_a_call_does_not_ask_for_another(guidance: Guidance) -> None:
    assert allows(guidance, HERMES, CALLS["hermes"] + "\n")


def test_a_mark_that_is_a_control_token_must_be_that_token() -> None:
    mark = 7

    class HasMark(Model):
        def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
            return [mark] if text == "[TOOL_CALLS]" and parse_special else super().tokenize(text)

        def piece(self, token: int, *, special: bool = False) -> bytes:
            if token == mark:
                return b"[TOOL_CALLS]" * special
            return super().piece(token, special=special)

    model = cast("Any", HasMark())
    grammar = MISTRAL.grammar([NOW], partial(literal, model))
    constraint = Guidance(model).compile(grammar, "tools").new()
    assert constraint.allows([mark, *b'[{"name": "now", "arguments": {}}]'])
    assert not constraint.allows([*b"[TOOL_CALLS]"])


@pytest.mark.parametrize(
    ("template", "knows_tools", "expected"),
    [
        ("{{ messages }}", False, GENERIC),
        ("<tool_call> without any tools", False, GENERIC),
        ('{{ tools }}<tool_call>\n{"name": x}</tool_call>', True, HERMES),
        ("{{ tools }}<tool_call>\n<function=x>", True, GENERIC),
        ("{{ tools }}[TOOL_CALLS][", True, MISTRAL),
        ("{{ tools }}[TOOL_CALLS]x[ARGS]", True, MISTRAL_V11),
        ('{{ tools }}{"name": f, "parameters": p}{% if role == "ipython" %}', True, LLAMA3),
        ("{{ tools }}<|something|>of its own", True, GENERIC),
    ],
)
def test_the_family_is_told_by_the_template(template: str, knows_tools: bool, expected: ToolFormat) -> None:
    assert tool_format(template, knows_tools=knows_tools) is expected


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {"type": "object"}),
        ({"properties": {}}, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object"}),
        ({"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}),
    ],
)
def test_arguments_are_an_object(parameters: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json.dumps(object_schema(parameters)) == json.dumps(expected)
