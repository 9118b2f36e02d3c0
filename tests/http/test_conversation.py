"""From messages to the prompt's text: roles, tools and variables, for templates that know them and that do not."""

from __future__ import annotations

from typing import Any

import pytest

from pyllmcancel.chat_template import ChatTemplate
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.prompt import prompt_text
from pyllmcancel.server.chat.tools import tool_plan
from pyllmcancel.server.error_responses import ApiError

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
    template = ChatTemplate(source)
    body = ChatBody.model_validate({"messages": list(messages or [USER])} | fields)
    return prompt_text(body, template, tool_plan(body, template))


# -- roles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "role", "expected"),
    [
        (PLAIN, "developer", "[system]x"),
        (PLAIN + "{# 'developer' #}", "developer", "[developer]x"),
        (PLAIN, "system", "[system]x"),
        (PLAIN + "{% if role == 'ipython' %}{% endif %}", "ipython", "[ipython]x"),
    ],
)
def test_a_role_is_one_that_the_template_knows(source: str, role: str, expected: str) -> None:
    assert rendered(source, {"role": role, "content": "x"}) == expected


@pytest.mark.parametrize("role", ["wizard", "function", "Assistant"])
def test_a_role_that_it_does_not_know_is_refused(role: str) -> None:
    with pytest.raises(InvalidRequestError, match=role) as caught:
        rendered(PLAIN, {"role": role, "content": "x"})
    assert caught.value.param == "messages"


def test_a_template_that_refuses_says_why() -> None:
    with pytest.raises(InvalidRequestError, match="no system") as caught:
        rendered(NO_SYSTEM, {"role": "developer", "content": "x"})
    assert caught.value.param == "messages"


# -- past calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (OBJECTS, '[user]hi[assistant]({"zone": "UTC"})[tool]12:00now'),
        (TEXTS, '[user]hi[assistant]({"zone": "UTC"})[tool]12:00now'),
        (PLAIN, '[user]hi[assistant]{"name": "now", "arguments": {"zone": "UTC"}}[user]now returned: 12:00'),
    ],
    ids=["objects", "texts", "neither"],
)
def test_past_calls_are_shown_as_the_template_wants_them(source: str, expected: str) -> None:
    assert rendered(source, USER, CALLED, RESULT) == expected


def test_arguments_that_are_no_object_stay_what_they_are() -> None:
    broken = {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"id": "c1", "index": 0, "function": {"name": "now", "arguments": "{"}}],
    }
    assert rendered(OBJECTS, USER, broken) == '[user]hi[assistant]x("{")'


# -- tools ------------------------------------------------------------------------------------------------------------


def test_a_template_that_knows_tools_gets_them() -> None:
    tools = '[{"type": "function", "function": {"name": "now", "description": "The time."}}]'
    assert rendered(OBJECTS, tools=[NOW]) == f"<tools>{tools}<tool_call></tools>[user]hi"
    assert rendered(OBJECTS, tools=[NOW], tool_choice="none") == "[user]hi"


@pytest.mark.parametrize("source", [PLAIN, "{{ '<|strange|>' if tools }}" + PLAIN])
def test_another_gets_them_told(source: str) -> None:
    text = rendered(source, tools=[NOW])
    hint, _, rest = text.removeprefix("[system]").partition("[user]")
    assert rest == "hi"
    assert '{"name": "now", "description": "The time."}' in hint
    assert rendered(source, {"role": "system", "content": "Be brief."}, USER, tools=[NOW]) == (
        f"[system]Be brief.\n\n{hint}[user]hi"
    )


def test_a_template_without_a_systems_message_tells_by_the_first() -> None:
    text = rendered(NO_SYSTEM, tools=[NOW])
    assert text.startswith("[user]You can call functions.")
    assert text.endswith("\n\nhi")


# -- variables --------------------------------------------------------------------------------------------------------


def test_variables_of_the_template() -> None:
    source = PLAIN + "{{ enable_thinking }}{{ 'go' if add_generation_prompt }}"
    assert rendered(source, chat_template_kwargs={"enable_thinking": 7}) == "[user]hi7go"
    assert rendered(source, add_generation_prompt=False) == "[user]hi"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_variables_that_are_not_the_clients(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        rendered(PLAIN, chat_template_kwargs={name: []})
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("source", "effort", "expected"),
    [
        ("{{ reasoning_effort }}", "low", "low"),
        ("{{ enable_thinking }}", "none", "False"),
        ("{{ enable_thinking }}", "high", "True"),
    ],
)
def test_reasoning_effort_is_for_templates_that_know_of_it(source: str, effort: str, expected: str) -> None:
    assert rendered(source, reasoning_effort=effort) == expected


def test_reasoning_effort_is_refused_by_others() -> None:
    with pytest.raises(ApiError) as caught:
        rendered(PLAIN, reasoning_effort="low")
    assert (caught.value.status, caught.value.param) == (400, "reasoning_effort")
    assert caught.value.code == "unsupported_field"


# -- content ----------------------------------------------------------------------------------------------------------


def test_parts_of_a_content_are_one_text() -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i", "cache_control": {"type": "ephemeral"}}]
    assert rendered(PLAIN, {"role": "user", "content": parts}) == "[user]hi"


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_parts_that_are_no_text_are_named(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind}.*not supported"):
        rendered(PLAIN, {"role": "user", "content": [{"type": kind, kind: {}}]})
