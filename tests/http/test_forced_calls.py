"""Calls that a real model is made to write, in the forms of several families: a grammar sees to it, a parser reads it.

The weights are those of the packaged model, which knows nothing of any of these forms.
"""

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.http.test_tools import tool
from tests.support.http_process import ServerProcess
from tests.support.marks import mostly_long

TEMPLATES = Path(__file__).parents[2] / "vendor/llama.cpp/models/templates"
FAMILIES = {
    "packaged": None,
    "qwen3": "Qwen-Qwen3-0.6B.jinja",
    "qwen3-coder": "Qwen3-Coder.jinja",
    "gpt-oss": "openai-gpt-oss-120b.jinja",
    "mistral": "mistralai-Mistral-Nemo-Instruct-2407.jinja",
    "glm": "GLM-4.6.jinja",
}


TOOLS: Any = [tool("get_weather", {"days": {"type": "integer", "minimum": 1, "maximum": 7}}), tool("now", {})]
NOW = {"type": "function", "function": {"name": "now"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NOW]}}
CHOICES: Any = [("required", {"get_weather", "now"}), (NOW, {"now"}), (ALLOWED, {"now"})]


@pytest.fixture(scope="module", params=mostly_long(FAMILIES, "packaged"))
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    name = FAMILIES[request.param]
    options = () if name is None else ("--chat-template-file", str(TEMPLATES / name))
    # Reasoning is the model's own choice, and this one would never end it.
    with ServerProcess(*options, "--reasoning-budget", "8") as process:
        process.started()
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as made:
            yield made
        process.wait_idle()


def forced_answer(client: openai.OpenAI, choice: Any, seed: int, *, stream: bool) -> Any:
    """None where the model, which knows nothing of tools, went on with blanks until its tokens were used up."""
    question = {"role": "user", "content": "What is the weather?"}
    fields: dict[str, Any] = {"model": "any", "messages": [question], "tools": TOOLS, "tool_choice": choice}
    fields |= {"parallel_tool_calls": False, "seed": seed, "max_tokens": 400}
    if stream:
        try:
            with client.chat.completions.stream(**fields) as events:
                (answer,) = events.get_final_completion().choices
        except openai.LengthFinishReasonError:
            return None
    else:
        (answer,) = client.chat.completions.create(**fields).choices
    return None if answer.finish_reason == "length" else answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("choice", "names"), mostly_long(CHOICES, CHOICES[0]), ids=["required", "named", "allowed"])
def test_a_call_can_be_forced(client: openai.OpenAI, choice: Any, names: set[str], stream: bool) -> None:
    every = (forced_answer(client, choice, seed, stream=stream) for seed in range(10))
    answers = list(islice((answer for answer in every if answer is not None), 3))
    assert len(answers) == 3
    for answer in answers:
        (call,) = answer.message.tool_calls or []
        assert answer.finish_reason == "tool_calls"
        assert call.function.name in names
        arguments = json.loads(call.function.arguments)
        assert arguments == {} if call.function.name == "now" else arguments["days"] in range(1, 8)


@pytest.mark.long
def test_a_call_that_is_cut_says_so(client: openai.OpenAI) -> None:
    (answer,) = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, tool_choice="required", max_tokens=3
    ).choices
    assert answer.finish_reason == "length"
