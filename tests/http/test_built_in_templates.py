"""``--chat-template NAME``, and ``--no-jinja``: templates that llama.cpp has built in."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.chat.template import CHATML, ChatTemplate
from pyllmcancel.cli.configuration import BUILT_IN
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.tools import tool_plan
from pyllmcancel.server.chat.turn import template_inputs
from pyllmcancel.server.config import ChatDefaults
from tests.http.test_serve_options import config_of

SOURCE = Path(__file__).resolve().parents[2] / "vendor" / "llama.cpp" / "src" / "llama-chat.cpp"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
OPENING = "<|start_header_id|>assistant<|end_header_id|>\n\n"
BY_NAME = ChatDefaults(jinja=False)


@pytest.fixture
def llama3() -> Iterator[ChatTemplate]:
    template = ChatTemplate("llama3", jinja=False)
    yield template
    template.close()


def inputs(template: ChatTemplate, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = ChatBody.model_validate({"messages": list(messages or MESSAGES)} | fields)
    return template_inputs(body, template, tool_plan(body.tools, body.tool_choice), BY_NAME)


def test_their_names_are_those_of_llama_cpp() -> None:
    listed = set(re.findall(r'\{ "([\w.-]+)", +LLM_CHAT_TEMPLATE_', SOURCE.read_text("utf-8")))
    assert listed - {"chatml"} == BUILT_IN


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_each_renders_a_conversation(name: str) -> None:
    functions = Functions()
    functions.open_template(name, "", "", "", jinja=False)
    assert "hi" in json.loads(functions.apply_template({"messages": MESSAGES}))["prompt"]


def test_a_name_stands_for_its_template(llama3: ChatTemplate) -> None:
    form = llama3.apply(inputs(llama3))
    assert form.prompt == (
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "hi<|eot_id|>" + OPENING
    )
    assert (form.grammar, form.triggers, form.thinking) == ("", (), None)
    assert [name for name, can in llama3.caps.items() if can] == ["supports_system_role"]


def test_a_template_is_recognised_by_its_text() -> None:
    functions = Functions()
    functions.open_template("{# <|im_start|> #}", "", "", "", jinja=False)
    assert json.loads(functions.apply_template({"messages": MESSAGES}))["prompt"].startswith(
        "<|im_start|>system\nBe brief."
    )


def test_one_that_is_not_recognised_is_refused() -> None:
    with (
        closing(ChatTemplate("{{ messages }}", jinja=False)) as template,
        pytest.raises(InvalidRequestError, match="not supported"),
    ):
        template.prepare()


def test_tools_are_refused_unless_none_may_be_called(llama3: ChatTemplate) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs(llama3, tools=[TOOL])
    assert caught.value.param == "tools"
    assert "now" not in llama3.apply(inputs(llama3, tools=[TOOL], tool_choice="none")).prompt


def test_an_answer_does_not_go_on(llama3: ChatTemplate) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "hello"}]
    assert llama3.apply(inputs(llama3, *messages)).prompt.endswith("hello<|eot_id|>" + OPENING)
    with pytest.raises(InvalidRequestError) as caught:
        inputs(llama3, *messages, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize(
    ("options", "template", "jinja"),
    [
        ("--chat-template llama3", "llama3", False),
        ("--jinja --chat-template llama3", "llama3", False),
        ("--chat-template chatml", CHATML, True),
        ("--no-jinja --chat-template chatml", CHATML, False),
    ],
)
def test_serve_takes_a_name(options: str, template: str, jinja: bool) -> None:
    config = config_of(*options.split())
    assert (config.chat_template, config.chat.jinja) == (template, jinja)
