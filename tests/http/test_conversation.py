"""From messages to the prompt's text: roles, tools and variables, for templates that know them and that do not."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.chat.template import CHATML, ChatForm, ChatTemplate, chat_form
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.pausing import no_pause
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.tools import NamedTool, tool_plan
from pyllmcancel.server.chat.turn import template_inputs
from pyllmcancel.server.config import ChatDefaults
from pyllmcancel.server.http.unknown_fields import take_unknown

DEFAULTS = ChatDefaults()
USER = {"role": "user", "content": "hi"}
NOW = {"type": "function", "function": {"name": "now", "description": "The time."}}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "12:00"}

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
OBJECTS = (
    "{% if tools %}<tools>{{ tools | tojson }}<tool_call></tools>{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% if m.role == 'tool' %}{{ m.name }}{% endif %}{% endfor %}"
)
TEXTS = OBJECTS.replace("arguments | tojson", "arguments")
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN


def rendered(source: str | None, *messages: dict[str, Any], **fields: Any) -> str:
    return form_of(source, *messages, **fields).prompt


class Opened(ChatTemplate):
    """In this process: what is written here has an end."""

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.functions = Functions()
        self._opened = self.functions.open_template(source, "", "", "")


def form_of(
    source: str | None, *messages: dict[str, Any], defaults: ChatDefaults = DEFAULTS, **fields: Any
) -> ChatForm:
    template = Opened(source or CHATML)
    body = ChatBody.model_validate({"messages": list(messages or [USER])} | fields)
    inputs = template_inputs(body, template, tool_plan(body.tools, body.tool_choice), defaults)
    return chat_form(inputs, json.loads(template.functions.apply_template(inputs)))


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


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (OBJECTS, '[user]hi[assistant]({"zone": "UTC"})[tool]12:00now'),
        (TEXTS, '[user]hi[assistant]({"zone": "UTC"})[tool]12:00now'),
    ],
    ids=["objects", "texts"],
)
def test_past_calls_are_shown_as_the_template_wants_them(source: str, expected: str) -> None:
    assert rendered(source, USER, CALLED, RESULT) == expected


@pytest.mark.parametrize(
    ("arguments", "shown"), [("{", '{"malformed": "{"}'), ("[1]", '{"malformed": "[1]"}'), ("", "{}")]
)
def test_arguments_that_are_no_object_are_put_into_one(arguments: str, shown: str) -> None:
    call = {"id": "c1", "index": 0, "function": {"name": "now", "arguments": arguments}}
    broken = {"role": "assistant", "content": "x", "tool_calls": [call]}
    assert rendered(OBJECTS, USER, broken, RESULT).startswith(f"[user]hi[assistant]x({shown})")


# -- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_a_template_that_knows_tools_gets_them(choice: str) -> None:
    prompt = rendered(OBJECTS, tools=[NOW], tool_choice=choice)
    assert prompt.startswith('<tools>[{"type": "function", "function": {"name": "now", "description": "The time.", ')
    assert prompt.endswith("</tools>[user]hi")


def test_only_tools_that_may_be_called_are_shown() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    named = {"type": "function", "function": {"name": "now"}}
    assert "other" not in rendered(OBJECTS, tools=[NOW, other], tool_choice=named)
    assert "other" in rendered(OBJECTS, tools=[NOW, other])


# -- an answer that goes on -------------------------------------------------------------------------------------------

HALF = {"role": "assistant", "content": "The sum is"}


@pytest.mark.parametrize("fields", [{}, {"continue_final_message": True}, {"continue_final_message": "content"}])
def test_an_answer_goes_on_with_the_assistants_last_message(fields: dict[str, Any]) -> None:
    assert rendered(None, USER, HALF, **fields).endswith("<|im_start|>assistant\nThe sum is")


@pytest.mark.parametrize(
    ("fields", "defaults"),
    [
        ({"continue_final_message": False}, ChatDefaults()),
        ({"add_generation_prompt": True}, ChatDefaults()),
        ({}, ChatDefaults(prefill_assistant=False)),
    ],
)
def test_an_answer_does_not_go_on_if_it_is_not_meant_to(fields: dict[str, Any], defaults: ChatDefaults) -> None:
    prompt = rendered(None, USER, HALF, defaults=defaults, **fields)
    assert prompt.endswith("The sum is<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        ([USER], {}),
        ([USER, CALLED], {}),
        ([USER, HALF], {"add_generation_prompt": True}),
    ],
)
def test_what_cannot_go_on_is_refused(messages: list[dict[str, Any]], fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered(None, *messages, continue_final_message=True, **fields)
    assert caught.value.param == "continue_final_message"


# -- variables --------------------------------------------------------------------------------------------------------


def test_variables_of_the_template() -> None:
    source = PLAIN + "{{ tone }}{{ 'go' if add_generation_prompt }}"
    assert rendered(source, chat_template_kwargs={"tone": "dry"}) == "[user]hidrygo"
    assert rendered(source, add_generation_prompt=False, chat_template_kwargs={"tone": ""}) == "[user]hi"


def test_the_operators_variables_hold_where_the_client_names_none() -> None:
    defaults = ChatDefaults(template_variables={"tone": "dry", "size": "big"})
    source = PLAIN + "{{ tone }}{{ size }}"
    assert rendered(source, defaults=defaults, chat_template_kwargs={"tone": "kind"}) == "[user]hikindbig"


def test_enable_thinking_is_yes_or_no() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        rendered(PLAIN, chat_template_kwargs={"enable_thinking": 7})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_variables_that_are_not_the_clients(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        rendered(PLAIN, chat_template_kwargs={name: []})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("effort", "expected"), [("low", "lowTrue"), ("none", "False"), ("high", "highTrue"), (None, "True")]
)
def test_reasoning_effort(effort: str | None, expected: str) -> None:
    source = "{{ reasoning_effort if reasoning_effort else '' }}{{ enable_thinking }}{{ messages[0].content[:0] }}"
    assert rendered(source, reasoning_effort=effort) == expected


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
        ({"reasoning_effort": "low", "enable_thinking": False}, "low|False"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "high|True"),
    ],
)
def test_thinking_has_many_names(fields: dict[str, Any], expected: str) -> None:
    assert rendered("{{ reasoning_effort }}|{{ enable_thinking }}", **fields) == expected


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"reasoning_effort": "low"}, ["reasoning_effort"]),
        ({"reasoning_effort": "none", "think": False, "thinking": {"type": "disabled"}}, []),
        ({"think": True, "enable_thinking": True}, ["think", "enable_thinking"]),
    ],
)
def test_what_a_template_without_thinking_does_not_know_is_passed_over(fields: dict[str, Any], told: list[str]) -> None:
    body = ChatBody(messages=[{"role": "user", "content": "x"}], **fields)
    ignored = take_unknown(body, "warn", no_pause)
    assert not body.thinking_variables(frozenset()).get("enable_thinking")
    assert list(ignored.names) == told


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
        ChatBody(messages=[{"role": "user", "content": [part]}])


def test_calls_of_the_old_kind_are_calls() -> None:
    body = ChatBody(
        messages=[
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": {"a": 1}}},
            {"role": "function", "name": "f", "content": "x"},
        ]
    )
    (call,) = body.messages[0].tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("f", '{"a": 1}')
    assert body.messages[1].role == "tool"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"name": "f", "input_schema": {"type": "object"}, "cache_control": {}},
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    ],
)
def test_tools_come_in_two_forms(tool: dict[str, Any]) -> None:
    (found,) = ChatBody(messages=[{"role": "user", "content": "x"}], tools=[tool]).tools or ()
    assert (found.function.name, found.function.parameters) == ("f", {"type": "object"})


@pytest.mark.parametrize(
    ("choice", "expected"),
    [("any", "required"), ({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none")],
)
def test_choices_of_tools_come_in_several_forms(choice: Any, expected: str) -> None:
    assert ChatBody(messages=[{"role": "user", "content": "x"}], tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize("kind", ["tool", "function"])
def test_a_tool_may_be_chosen_by_its_name(kind: str) -> None:
    body = ChatBody(messages=[{"role": "user", "content": "x"}], tool_choice={"type": kind, "name": "f"})
    assert isinstance(body.tool_choice, NamedTool)
    assert body.tool_choice.function.name == "f"


# -- content ----------------------------------------------------------------------------------------------------------
