"""ChatTemplate: llama.cpp's templates compile, render and say how an answer looks; what is wrong with one is said."""

import json

import pytest

from pyllmcancel.chat.template import Thinking, chat_form
from pyllmcancel.errors import InvalidRequestError
from tests.native import chat_templates
from tests.native.chat_templates import ALL, PAST_CALL, QUESTION, TOOLS, apply, compiled
from tests.support.marks import mostly_long

CHATML = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{{ '[bot]' if add_generation_prompt }}"


def rendered(source: str, **inputs: object) -> dict[str, object]:
    messages = {"messages": [{"role": "user", "content": "hello"}]}
    return json.loads(compiled(source).apply(json.dumps(messages | inputs).encode()))


@pytest.mark.parametrize("name", ALL)
def test_every_template_renders_and_parses_plain_content(name: str) -> None:
    form = apply(name)
    assert "What is the weather in Köln?" in json.loads(form)["prompt"]
    # gpt-oss and others have marks around content; what has none is content all the same.
    parsed = chat_templates.parse_everywhere(form, "Fine, 21 °C.")
    assert parsed.content + parsed.reasoning.removeprefix("Here are my reasoning steps:").lstrip() == "Fine, 21 °C."
    assert parsed.calls == []


def test_caps_have_the_names_of_llama_cpp() -> None:
    caps = chat_templates.template("Qwen-Qwen3-0.6B").caps
    assert caps["supports_tools"]
    assert caps["supports_parallel_tool_calls"]
    assert not chat_templates.template("google-gemma-2-2b-it").caps["supports_tools"]


def test_a_template_that_cannot_be_compiled_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidRequestError, match="line 1: Expected an expression"):
        compiled("{% for %}")


def test_what_a_template_raises_is_told() -> None:
    with pytest.raises(InvalidRequestError, match="no such role") as caught:
        rendered("{{ raise_exception('no such role') if messages[0].content == 'hello' else '' }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "inputs",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"messages": 1}',
        b'{"messages": [{"content": "no role"}]}',
        b'{"messages": [], "tools": 1}',
        b'{"messages": [], "tool_choice": "often"}',
        b'{"messages": [], "reasoning_format": "loud"}',
        b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
    ],
)
def test_inputs_that_make_no_sense_are_refused(inputs: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        compiled(CHATML).apply(inputs)


def test_arguments_of_the_template_reach_it() -> None:
    source = CHATML + "{{ mood }}{{ n }}{{ bos_token }}"
    assert rendered(source, chat_template_kwargs={"mood": "good", "n": 3})["prompt"] == "[user]hello[bot]good3<s>"


def test_a_bos_that_the_tokenizer_adds_is_not_in_the_text() -> None:
    template = compiled("{{ bos_token }}" + CHATML, adds_bos=True)
    question = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()
    assert json.loads(template.apply(question))["prompt"] == "[user]hello[bot]"


def test_an_answer_that_goes_on_is_part_of_the_prompt_and_no_part_of_the_parts() -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Good eve"}]
    form = apply("Qwen-Qwen3-0.6B", messages, add_generation_prompt=False, continue_final_message=True)
    assert json.loads(form)["prompt"].endswith("Good eve")
    continued = json.dumps(json.loads(form) | {"is_continuation": True}).encode()
    assert chat_templates.parse_everywhere(continued, "ning!").content == "ning!"


NO_THINKING = {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": False}}


def goes_on(**said: str) -> dict[str, object]:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "", **said}]
    return {"messages": messages, "add_generation_prompt": False, "continue_final_message": next(iter(said))}


def thinking(name: str, **inputs: object) -> Thinking:
    found = chat_form(inputs, json.loads(apply(name, **inputs))).thinking
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "inputs", "begun", "over"),
    [
        ("Qwen-Qwen3-0.6B", {}, False, False),
        ("Qwen-Qwen3-0.6B", NO_THINKING, False, True),
        ("Qwen-Qwen3-0.6B", goes_on(content="Good eve"), False, True),
        ("Qwen-Qwen3-0.6B", goes_on(reasoning_content="I should"), True, False),
        ("GLM-4.6", NO_THINKING, False, True),
        ("Qwen3.5-4B", {}, True, False),
        ("Qwen3.5-4B", NO_THINKING, False, True),
        ("openai-gpt-oss-120b", {}, False, False),
        ("openai-gpt-oss-120b", goes_on(content="Good eve"), False, True),
        ("openai-gpt-oss-120b", goes_on(reasoning_content="I should"), True, False),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", {}, False, False),
        ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", NO_THINKING, False, True),
    ],
)
def test_reasoning_is_to_come_has_begun_or_ended(name: str, inputs: dict[str, object], begun: bool, over: bool) -> None:
    found = thinking(name, **inputs)
    assert (found.begun, found.over) == (begun, over)


def test_old_templates_can_be_rendered_without_jinja() -> None:
    source = "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}"
    assert rendered(source, use_jinja=False)["prompt"] == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", mostly_long(ALL, "Qwen-Qwen3-0.6B"))
def test_what_is_remembered_of_one_conversation_changes_no_other(name: str) -> None:
    """A form is found once for requests that differ in their messages only."""
    source = (chat_templates.TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    kept = compiled(source)
    twice = [*QUESTION, {"role": "assistant", "content": "Cold."}, *QUESTION]
    for messages in (
        QUESTION,
        PAST_CALL,
        twice,
        QUESTION,
        PAST_CALL,
    ):
        for inputs in ({"tools": TOOLS}, {"tools": TOOLS, "enable_thinking": False}, {}):
            text = json.dumps({"messages": messages} | inputs).encode()
            try:
                expected = compiled(source).apply(text)
            except InvalidRequestError:
                with pytest.raises(InvalidRequestError):
                    kept.apply(text)
            else:
                assert json.loads(kept.apply(text)) == json.loads(expected)
