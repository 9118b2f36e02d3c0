"""From messages to the prompt's text: roles, tools and variables, for templates that know them and that do not.

Templates come with model files, from anywhere: what they do wrong is the request's error.
"""

import json
from contextlib import closing
from typing import Any

import pytest
from pydantic import ValidationError

from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.chat.template import CHATML, ChatTemplate, chat_form
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.pausing import no_pause
from pyllmcancel.server.chat.body import ChatBody, NamedTool
from pyllmcancel.server.chat.turn import template_inputs
from pyllmcancel.server.config import ChatDefaults
from pyllmcancel.server.http.unknown_fields import take_unknown

DEFAULTS = ChatDefaults()
USER = {"role": "user", "content": "hi"}
NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}
NAMED = {"type": "function", "function": {"name": "now"}}
OTHER = {"type": "function", "function": {"name": "other"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "12:00"}

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
OBJECTS = (
    "{% if tools %}<tools>{{ tools | tojson }}<tool_call></tools>{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% if m.role == 'tool' %}{{ m.name }}{% endif %}{% endfor %}"
)
TEXTS = OBJECTS.replace("arguments | tojson", "arguments")
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN


def rendered(source: str | None, *messages: dict[str, Any], defaults: ChatDefaults = DEFAULTS, **fields: Any) -> str:
    template = Opened(source or CHATML)
    body = body_of(*messages, **fields)
    inputs = template_inputs(body, template, defaults)
    return chat_form(inputs, json.loads(template.functions.apply_template(inputs))).prompt


def body_of(*messages: dict[str, Any], **fields: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": list(messages or [USER])} | fields)


class Opened(ChatTemplate):
    """In this process: what is written here has an end."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.functions = Functions()
        self._opened = self.functions.open_template(source, "", "", "")


# -- roles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "role", "expected"),
    [
        (PLAIN, "developer", "[system]x"),
        (PLAIN, "system", "[system]x"),
        (PLAIN + "{% if role == 'ipython' %}{% endif %}", "ipython", "[ipython]x"),
        (NO_SYSTEM, "system", "[user]x"),
    ],
)
def test_a_role_is_one_that_the_template_knows(source: str, role: str, expected: str) -> None:
    assert rendered(source, {"role": role, "content": "x"}, USER).startswith(expected)


# -- past calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [OBJECTS, TEXTS], ids=["objects", "texts"])
def test_past_calls_are_shown_as_the_template_wants_them(source: str) -> None:
    assert rendered(source, USER, CALLED, RESULT) == '[user]hi[assistant]({"zone": "UTC"})[tool]12:00now'


@pytest.mark.parametrize(
    ("arguments", "shown"), [("{", '{"malformed": "{"}'), ("[1]", '{"malformed": "[1]"}'), ("", "{}")]
)
def test_arguments_that_are_no_object_are_put_into_one(arguments: str, shown: str) -> None:
    call = {"id": "c1", "index": 0, "function": {"name": "now", "arguments": arguments}}
    broken = {"role": "assistant", "content": "x", "tool_calls": [call]}
    assert rendered(OBJECTS, USER, broken, RESULT).startswith(f"[user]hi[assistant]x({shown})")


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["auto", "none", "required", NAMED])
def test_a_template_that_knows_tools_gets_those_that_may_be_called(choice: Any) -> None:
    prompt = rendered(OBJECTS, tools=[NOW, OTHER], tool_choice=choice)
    assert prompt.startswith('<tools>[{"type": "function", "function": {"name": "now", "description": "The time.", ')
    assert prompt.endswith("</tools>[user]hi")
    assert ("other" in prompt) == (choice is not NAMED)


# -- an answer that goes on -------------------------------------------------------------------------------------------

HALF = {"role": "assistant", "content": "The sum is"}


@pytest.mark.parametrize(
    ("fields", "defaults", "goes_on"),
    [
        ({}, DEFAULTS, True),
        ({"continue_final_message": True}, DEFAULTS, True),
        ({"continue_final_message": "content"}, DEFAULTS, True),
        ({"continue_final_message": False}, DEFAULTS, False),
        ({"add_generation_prompt": True}, DEFAULTS, False),
        ({}, ChatDefaults(prefill_assistant=False), False),
    ],
)
def test_an_answer_goes_on_with_the_assistants_last_message_if_it_is_meant_to(
    fields: dict[str, Any], defaults: ChatDefaults, goes_on: bool
) -> None:
    prompt = rendered(None, USER, HALF, defaults=defaults, **fields)
    assert prompt.endswith("The sum is" + ("" if goes_on else "<|im_end|>\n<|im_start|>assistant\n"))


@pytest.mark.parametrize(
    ("messages", "fields"), [([], {}), ([USER, CALLED], {}), ([USER, HALF], {"add_generation_prompt": True})]
)
def test_what_cannot_go_on_is_refused(messages: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered(None, *messages, continue_final_message=True, **fields)
    assert caught.value.param == "continue_final_message"


# -- variables --------------------------------------------------------------------------------------------------------


def test_variables_of_the_template_are_the_clients_and_else_the_operators() -> None:
    source = PLAIN + "{{ tone }}{{ 'go' if add_generation_prompt }}{{ size }}"
    defaults = ChatDefaults(template_variables={"tone": "dry", "size": "big"})
    assert rendered(source, chat_template_kwargs={"tone": "dry"}) == "[user]hidrygo"
    assert rendered(source, add_generation_prompt=False, chat_template_kwargs={"tone": ""}) == "[user]hi"
    assert rendered(source, defaults=defaults, chat_template_kwargs={"tone": "kind"}) == "[user]hikindgobig"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "enable_thinking"])
def test_variables_that_are_not_the_clients_or_have_no_such_value(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        rendered(PLAIN, chat_template_kwargs={name: []})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"think": True}, "|True"),
        ({"think": "high"}, "high|True"),
        ({"think": False}, "|False"),
        ({"enable_thinking": True}, "|True"),
        ({"thinking": {"type": "disabled"}}, "|False"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "|True"),
        ({"thinking": {"type": "auto"}}, "|True"),
        ({"reasoning": {"effort": "low"}}, "low|True"),
        ({"reasoning": {"enabled": False}}, "|False"),
        ({"reasoning_effort": None}, "|True"),
        ({"reasoning_effort": "high"}, "high|True"),
        ({"reasoning_effort": "none"}, "|False"),
        ({"reasoning_effort": "low", "enable_thinking": False}, "low|False"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "high|True"),
    ],
)
def test_thinking_has_many_names(fields: dict[str, Any], expected: str) -> None:
    source = "{{ reasoning_effort if reasoning_effort else '' }}|{{ enable_thinking }}"
    assert rendered(source, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"reasoning_effort": "low"}, ["reasoning_effort"]),
        ({"reasoning_effort": "none", "think": False, "thinking": {"type": "disabled"}}, []),
        ({"think": True, "enable_thinking": True}, ["think", "enable_thinking"]),
    ],
)
def test_what_a_template_without_thinking_does_not_know_is_passed_over(fields: dict[str, Any], told: list[str]) -> None:
    body = body_of(**fields)
    ignored = take_unknown(body, "warn", no_pause)
    assert not body.thinking_variables(frozenset()).get("enable_thinking")
    assert list(ignored) == told


# -- forms of messages ------------------------------------------------------------------------------------------------

ALL = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.reasoning_content }}{% endfor %}"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}, "c"]}, "abc"),
        ({"content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"content": {"type": "text", "text": "a"}}, "a"),
        ({"content": [{"text": "a"}, {"type": None, "text": "b"}, {"type": "", "text": "c"}]}, "abc"),
        ({"content": None, "reasoning_content": "hm"}, "hm"),
        ({"content": "a", "reasoning": "hm"}, "ahm"),
        ({"content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "a"}]}, "ahm"),
        ({"content": [{"type": "reasoning", "text": "hm"}, "a"]}, "ahm"),
        ({"content": []}, ""),
    ],
)
def test_messages_come_in_many_forms(message: dict[str, Any], expected: str) -> None:
    assert rendered(ALL, {"role": "assistant"} | message, USER) == f"[assistant]{expected}[user]hi"


@pytest.mark.parametrize(
    "part", [{"type": ["text"]}, {"text": 1}, 7, None, {"type": "text"}, {"type": "refusal"}, {"type": "image_url"}]
)
def test_a_part_that_is_none_is_refused(part: Any) -> None:
    with pytest.raises(ValidationError):
        body_of({"role": "user", "content": [part]})


OBJECT = {"type": "object"}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "name": "f", "parameters": OBJECT},
        {"name": "f", "input_schema": OBJECT, "cache_control": {}},
        {"type": "function", "function": {"name": "f", "parameters": OBJECT}},
    ],
)
def test_tools_and_calls_come_in_several_forms(tool: dict[str, Any]) -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": {"a": 1}}}
    body = body_of(called, {"role": "function", "name": "f", "content": "x"}, tools=[tool])
    (found,), (call,) = body.tools or (), body.messages[0].tool_calls or ()
    assert (found.function.name, found.function.parameters) == ("f", OBJECT)
    assert (call.function.name, call.function.arguments) == ("f", '{"a": 1}')
    assert body.messages[1].role == "tool"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("any", "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, "f"),
        ({"type": "function", "name": "f"}, "f"),
    ],
)
def test_choices_of_tools_come_in_several_forms(choice: Any, expected: str) -> None:
    found = body_of(tool_choice=choice).tool_choice
    assert (found.function.name if isinstance(found, NamedTool) else found) == expected


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>ü</b>"}]
TWO = [{"role": "user", "content": " a b "}, {"role": "assistant", "content": "<b>ü</b>"}]
NO_PARAMETERS = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
ZONE_CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "wait", "tool_calls": [ZONE_CALL, ZONE_CALL]},
    {"role": "tool", "content": "12:00", "tool_call_id": "1", "name": "now"},
    {"role": "tool", "content": "13:00", "tool_call_id": "1", "name": "now"},
]
CHATML_NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML


def applied(source: str, messages: list[dict[str, Any]] = MESSAGES, **inputs: Any) -> str:
    """In this process: what is written here has an end."""
    functions = Functions()
    functions.open_template(source, "<s>", "</s>", "")
    return json.loads(functions.apply_template({"messages": messages, **inputs}))["prompt"]


@pytest.mark.parametrize(
    "source",
    [
        "{% include 'x' %}",
        "{{ raise_exception('no') }}",
        "{{ messages[0] + 1 }}",
        "{{ nothing | tojson }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_whatever_a_template_does_wrong_is_the_requests_error(source: str) -> None:
    with closing(ChatTemplate(source)) as template:
        with pytest.raises(InvalidRequestError) as caught:
            template.apply({"messages": MESSAGES})
        assert caught.value.param in ("messages", "chat_template")


def test_a_template_for_tools_is_rendered_where_there_are_tools() -> None:
    with closing(ChatTemplate("{{ messages[0].content }}", tool_use_source="{{ tools | tojson }}")) as template:
        assert template.apply({"messages": TWO}).prompt == " a b "
        assert (
            json.loads(template.apply({"messages": TWO, "tools": [NO_PARAMETERS]}).prompt)[0]["function"]["name"]
            == "now"
        )


@pytest.mark.parametrize(
    ("sources", "param"), [(("x", "\n{% for %}"), "tools"), (("\n{% for %}", "x"), "chat_template")]
)
def test_a_template_that_cannot_be_compiled_costs_what_it_is_for(
    sources: tuple[str, str], param: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused, served = ([NO_PARAMETERS], []) if param == "tools" else ([], [NO_PARAMETERS])
    with closing(ChatTemplate(sources[0], tool_use_source=sources[1])) as template:
        assert template.apply({"messages": TWO, "tools": served}).prompt == "x"
        with pytest.raises(InvalidRequestError, match="cannot be compiled: line 2: Expected an expression") as caught:
            template.apply({"messages": TWO, "tools": refused})
        assert caught.value.param == param
        assert "cannot be compiled: line 2" in caplog.text


# -- templates that know nothing of tools -----------------------------------------------------------------------------


PARTS = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "messages", "begins", "ends"),
    [
        (CHATML, MESSAGES, "<|im_start|>system\nBe brief.\n\nYou can call functions.", "ü</b><|im_end|>\n"),
        (CHATML, TALK, "<|im_start|>system\nYou can call functions.", "13:00\n</tool_response><|im_end|>\n"),
        (CHATML_NO_SYSTEM, TALK[:1], "<|im_start|>user\nYou can call functions.", "\n\nhi<|im_end|>\n"),
        (PARTS, TALK, "[system]You can call functions.", "13:00\n</tool_response>"),
    ],
)
def test_tools_are_described_where_the_template_has_room_for_them(
    source: str, messages: list[dict[str, Any]], begins: str, ends: str
) -> None:
    prompt = applied(source, messages, tools=[NO_PARAMETERS], add_generation_prompt=False)
    assert prompt.startswith(begins)
    assert prompt.endswith(ends)
    assert prompt.count('{"name": "now", "description": "", "parameters":') == 1
    assert prompt.count("You can call functions.") == 1


@pytest.mark.parametrize("tools", [[], [NO_PARAMETERS]])
def test_past_calls_and_their_results_are_told_as_text(tools: list[dict[str, Any]]) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
    results = "<tool_response>\n12:00\n</tool_response>\n<tool_response>\n13:00\n</tool_response>"
    expected = (
        f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nwait\n{call}\n{call}<|im_end|>\n"
        f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert applied(CHATML, TALK, tools=tools).endswith(expected)


# -- templates that are strict ----------------------------------------------------------------------------------------

STRICT = (
    "{% for m in messages %}{% if loop.index0 > 8 and m.role == loop.previtem.role %}"
    "{{ raise_exception('two of ' + m.role) }}{% endif %}{% endfor %}" + CHATML
)
LONG_TALK = TWO * 5


def test_what_is_refused_against_all_expectation_is_tried_as_for_the_strictest_template() -> None:
    prompt = applied(STRICT, [*LONG_TALK, TWO[0], {"role": "user", "content": "c"}])
    assert prompt.endswith(" a b \n\nc<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(InvalidRequestError, match="two of wizard"):  # which that does not help
        applied(STRICT, [*LONG_TALK, *[{"role": "wizard", "content": "c"}] * 2, *[TWO[0]] * 2])
