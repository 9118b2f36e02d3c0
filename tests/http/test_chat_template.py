"""Chat templates come with model files, from anywhere: what they are given, and what becomes of what they do wrong."""

import json
from contextlib import closing
from typing import Any

import pytest

from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.chat.template import CHATML, ChatTemplate
from pyllmcancel.errors import InvalidRequestError

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>ü</b>"}]
TWO = [{"role": "user", "content": " a b "}, {"role": "assistant", "content": "<b>ü</b>"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
TALK = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "wait", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "12:00", "tool_call_id": "1", "name": "now"},
    {"role": "tool", "content": "13:00", "tool_call_id": "1", "name": "now"},
]
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML


def rendered(source: str, messages: list[dict[str, Any]] = MESSAGES, **inputs: Any) -> str:
    """In this process: what is written here has an end."""
    functions = Functions()
    functions.open_template(source, "<s>", "</s>", "")
    return json.loads(functions.apply_template({"messages": messages, **inputs}))["prompt"]


def test_the_generation_prompt_can_be_left_out() -> None:
    assert rendered(CHATML, MESSAGES[1:], add_generation_prompt=False).endswith("<|im_end|>\n")


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
        assert json.loads(template.apply({"messages": TWO, "tools": [TOOL]}).prompt)[0]["function"]["name"] == "now"


@pytest.mark.parametrize(
    ("source", "tool_use_source", "refused", "served", "param"),
    [
        ("x", "\n{% for %}", {"tools": [TOOL]}, {"tools": []}, "tools"),
        ("\n{% for %}", "x", {}, {"tools": [TOOL]}, "chat_template"),
    ],
)
def test_a_template_that_cannot_be_compiled_costs_what_it_is_for(  # noqa: PLR0917
    source: str,
    tool_use_source: str,
    refused: dict[str, Any],
    served: dict[str, Any],
    param: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(ChatTemplate(source, tool_use_source=tool_use_source)) as template:
        assert template.apply({"messages": TWO, **served}).prompt == "x"
        with pytest.raises(InvalidRequestError, match="cannot be compiled: line 2: Expected an expression") as caught:
            template.apply({"messages": TWO, **refused})
        assert caught.value.param == param
        assert "cannot be compiled: line 2" in caplog.text


# -- templates that know nothing of tools -----------------------------------------------------------------------------


def test_tools_are_described_in_the_systems_message() -> None:
    prompt = rendered(CHATML, tools=[TOOL])
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can call functions.")
    assert '{"name": "now", "description": "", "parameters":' in prompt.partition("<|im_end|>")[0]
    assert prompt.count("<|im_start|>system") == 1


def test_tools_get_a_systems_message_if_there_is_none() -> None:
    prompt = rendered(CHATML, TALK, tools=[TOOL])
    assert prompt.startswith("<|im_start|>system\nYou can call functions.")


def test_tools_are_described_to_the_user_where_there_is_no_system() -> None:
    prompt = rendered(NO_SYSTEM, TALK[:1], tools=[TOOL])
    assert prompt.startswith("<|im_start|>user\nYou can call functions.")
    assert prompt.endswith("\n\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("tools", [[], [TOOL]])
def test_past_calls_and_their_results_are_told_as_text(tools: list[dict[str, Any]]) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {"zone": "UTC"}}\n</tool_call>'
    results = "<tool_response>\n12:00\n</tool_response>\n<tool_response>\n13:00\n</tool_response>"
    expected = (
        f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nwait\n{call}\n{call}<|im_end|>\n"
        f"<|im_start|>user\n{results}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered(CHATML, TALK, tools=tools).endswith(expected)


def test_a_template_that_takes_parts_only_is_told_of_tools_in_parts() -> None:
    source = "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}"
    prompt = rendered(source, TALK, tools=[TOOL])
    assert prompt.startswith("[system]You can call functions.")
    assert "[assistant]wait\n<tool_call>" in prompt
    assert prompt.endswith("13:00\n</tool_response>")


def test_a_template_that_knows_tools_is_left_alone() -> None:
    source = (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}{% endfor %}"
    )
    prompt = rendered(source, TALK, tools=[TOOL])
    assert "You can call" not in prompt
    assert prompt.count("<call>") == 2


# -- templates that are strict ----------------------------------------------------------------------------------------

STRICT = (
    "{% for m in messages %}{% if loop.index0 > 8 and m.role == loop.previtem.role %}"
    "{{ raise_exception('two of ' + m.role) }}{% endif %}{% endfor %}" + CHATML
)
LONG_TALK = TWO * 5


def test_what_is_refused_against_all_expectation_is_tried_as_for_the_strictest_template() -> None:
    prompt = rendered(STRICT, [*LONG_TALK, TWO[0], {"role": "user", "content": "c"}])
    assert prompt.endswith(" a b \n\nc<|im_end|>\n<|im_start|>assistant\n")


def test_what_the_strictest_order_does_not_help_is_refused_in_the_first_words() -> None:
    with pytest.raises(InvalidRequestError, match="two of wizard"):
        rendered(STRICT, [*LONG_TALK, *[{"role": "wizard", "content": "c"}] * 2, *[TWO[0]] * 2])
