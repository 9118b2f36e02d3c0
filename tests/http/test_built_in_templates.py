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
    return template_inputs(body, template, BY_NAME)


def test_their_names_are_those_of_llama_cpp() -> None:
    listed = set(re.findall(r'\{ "([\w.-]+)", +LLM_CHAT_TEMPLATE_', SOURCE.read_text("utf-8")))
    assert listed - {"chatml"} == BUILT_IN


def rendered(source: str) -> str:
    functions = Functions()
    functions.open_template(source, "", "", "", jinja=False)
    return str(json.loads(functions.apply_template({"messages": MESSAGES}))["prompt"])


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_each_renders_a_conversation(name: str) -> None:
    assert "hi" in rendered(name)


def test_a_name_stands_for_its_template(llama3: ChatTemplate) -> None:
    form = llama3.apply(inputs(llama3))
    assert form.prompt == (
        "<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "hi<|eot_id|>" + OPENING
    )
    assert (form.grammar, form.triggers, form.thinking) == ("", (), None)
    assert [name for name, can in llama3.caps.items() if can] == ["supports_system_role"]


def test_a_template_is_recognised_by_its_text_or_refused() -> None:
    assert rendered("{# <|im_start|> #}").startswith("<|im_start|>system\nBe brief.")
    with (
        closing(ChatTemplate("{{ messages }}", jinja=False)) as template,
        pytest.raises(InvalidRequestError, match="not supported"),
    ):
        template.prepare()


@pytest.mark.parametrize("fields", [{"tools": [TOOL]}, {"continue_final_message": True}])
def test_tools_and_answers_that_go_on_are_refused(llama3: ChatTemplate, fields: dict[str, Any]) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "hello"}]
    with pytest.raises(InvalidRequestError) as caught:
        inputs(llama3, *messages, **fields)
    assert [caught.value.param] == list(fields)
    prompt = llama3.apply(inputs(llama3, *messages, tools=[TOOL], tool_choice="none")).prompt
    assert prompt.endswith("hello<|eot_id|>" + OPENING)
    assert "now" not in prompt


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
