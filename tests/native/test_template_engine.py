"""llama.cpp's chat layer, to analyse a template and for a prompt, gets the text that transformers renders."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pyllmcancel._native import ChatTemplate
from pyllmcancel.chat.jinja_engine import Engine, TemplateFault
from pyllmcancel.errors import InvalidRequestError
from tests.native.chat_templates import ALL, PAST_CALL, QUESTION, TEMPLATES, TOOLS
from tests.support.marks import mostly_long
from tests.support.transformers_templates import rendered

SUPPORTED = (
    *("string_content", "typed_content", "tools", "tool_calls", "parallel_tool_calls", "system_role"),
    *("preserve_reasoning", "reasoning_effort", "object_arguments"),
)
CAPS = {f"supports_{name}": True for name in SUPPORTED}
# These are refused by transformers now and then: for what is said in jinja_engine.py of lists that are appended to, of
# what `map` makes, of tools that there are not, of functions that are no tools, and in template_tools.py.
MORE_THAN_TRANSFORMERS = {
    *("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"),
    *("CohereForAI-c4ai-command-r-plus-tool_use", "Kimi-K2-Instruct", "Kimi-K2-Thinking"),
    *("fireworks-ai-llama-3-firefunction-v2", "llama-cpp-deepseek-r1"),
}
SYSTEM = {"role": "system", "content": "Be brief."}
LOOSE: dict[str, Any] = {
    "type": "object",
    "properties": {"list": {"type": "array"}, "any": {"type": ["string", "null"]}},
}
FORMS: dict[str, dict[str, Any]] = {
    "a question": {"messages": QUESTION},
    "a system's message": {"messages": [SYSTEM, *QUESTION]},
    "no reasoning": {"messages": QUESTION, "enable_thinking": False},
    "tools": {"messages": QUESTION, "tools": TOOLS},
    "a past call": {"messages": PAST_CALL, "tools": TOOLS},
    "loose schemas": {
        "messages": QUESTION,
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": LOOSE}}],
    },
}


class Recorder(Engine):
    """Keeps what it was asked, and what it said; None for a refusal."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, str | None] = {}

    def render(self, source: str, variables: str) -> str:
        self.said[variables] = None
        text = self.said[variables] = super().render(source, variables)
        return text


@pytest.mark.parametrize("name", mostly_long(ALL, *(name for name in ALL if name.startswith("Qwen"))))
def test_every_template_is_rendered_as_transformers_does(name: str) -> None:
    source, recorder = (TEMPLATES / f"{name}.jinja").read_text("utf-8"), Recorder()
    template = ChatTemplate(source, recorder, "<s>", "</s>")
    for form in FORMS.values():
        try:
            template.apply(json.dumps(form).encode())
        except InvalidRequestError as error:
            assert "roles must alternate" in str(error)  # noqa: PT017 - Gemma 2's, for a tool's
    assert len(recorder.said) >= len(FORMS)
    for variables, text in recorder.said.items():
        try:
            expected = rendered(source, json.loads(variables))
        except Exception:
            assert text is None or name in MORE_THAN_TRANSFORMERS
        else:
            assert text == expected


class Scripted:
    """Says what a test wants it to."""

    def __init__(self, render: Callable[[str, str], str], caps: Mapping[str, object] = CAPS) -> None:
        self._render, self._caps = render, caps

    def caps(self, source: str, /) -> Any:
        return self._caps

    def render(self, source: str, variables: str, /) -> str:
        return self._render(source, variables)


def raising(error: BaseException) -> Callable[[str, str], str]:
    def render(source: str, variables: str) -> str:
        raise error

    return render


def applied(engine: Scripted, **inputs: Any) -> Any:
    return json.loads(ChatTemplate("source", engine, "<s>", "</s>").apply(json.dumps(inputs).encode()))


def test_the_engine_gets_the_source_and_what_the_template_is_to_know() -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def render(source: str, variables: str) -> str:
        asked.append((source, json.loads(variables)))
        return "prompt"

    effort = {"reasoning_effort": "high", "preserve_reasoning": True, "n": 1}
    assert applied(Scripted(render), messages=QUESTION, chat_template_kwargs=effort)["prompt"] == "prompt"
    assert {source for source, _ in asked} == {"source"}
    variables = next(known for _, known in asked if known.get("n") == 1)
    assert variables["messages"] == QUESTION
    assert (variables["bos_token"], variables["eos_token"], variables["enable_thinking"]) == ("<s>", "</s>", True)
    assert variables["reasoning_strength"] == "high"
    assert (variables["preserve_thinking"], variables["clear_thinking"]) == (True, False)


def test_the_engines_caps_are_the_templates() -> None:
    caps = {**CAPS, "supports_tools": False}
    assert ChatTemplate("", Scripted(raising(ValueError()), caps)).caps == caps


@pytest.mark.parametrize("caps", [{}, {**CAPS, "supports_tools": "yes"}])
def test_caps_that_are_none_are_an_error(caps: Mapping[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        ChatTemplate("", Scripted(raising(ValueError()), caps))


@pytest.mark.parametrize("error", [TemplateFault("line 3: no"), KeyboardInterrupt("line 3: no")])
def test_what_the_engine_raises_is_why_the_template_is_refused(error: BaseException) -> None:
    with pytest.raises(InvalidRequestError, match=r"^line 3: no$"):
        applied(Scripted(raising(error)), messages=QUESTION)


def test_an_engine_without_memory_is_no_refusal() -> None:
    with pytest.raises(MemoryError):
        applied(Scripted(raising(MemoryError())), messages=QUESTION)
