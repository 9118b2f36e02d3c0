"""Forms of conversations that agents send, in strict templates and others; in all: ``python -m tests.templates``."""

import json
from itertools import chain, pairwise
from typing import Any

import pytest

from tests.support.marks import mostly_long
from tests.templates import bodies
from tests.templates.bodies import FORMS, LATE_RESULT, Form
from tests.templates.matrix import opened, outcome

MISTRAL = "Mistral-Small-3.2-24B-Instruct-2506"
NEMO = "mistralai-Mistral-Nemo-Instruct-2407"
MINISTRAL = "mistralai-Ministral-3-14B-Reasoning-2512"
GEMMA = "google-gemma-2-2b-it"
STRICT = (MISTRAL, NEMO, MINISTRAL, GEMMA, "Qwen3.5-4B", "openai-gpt-oss-120b", "Apertus-8B-Instruct", "MiniMax-M2")
CHOSEN = (*STRICT, "meta-llama-Llama-3.1-8B-Instruct", "Kimi-K3", "deepseek-ai-DeepSeek-V3.1", "Qwen3-Coder")


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("name", mostly_long(CHOSEN, GEMMA))
def test_nothing_is_refused_and_no_text_is_lost_or_moved(name: str, form: Form) -> None:
    found = outcome(name, form)
    assert (found.refused, found.lost) == ("", ())
    # There the result goes to its call, before what was said meanwhile.
    assert not found.moved or form.name == LATE_RESULT


def test_there_are_as_many_forms_as_the_pages_say() -> None:
    assert len(FORMS) == len({form.name for form in FORMS}) == 32


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "Qwen3-Coder", "ibm-granite-granite-4.0"])
def test_a_template_that_takes_everything_gets_what_was_sent(name: str) -> None:
    functions = opened(name)
    (answer,) = (form for form in FORMS if form.name == LATE_RESULT)
    messages = [*answer.body["messages"], bodies.system(3), bodies.developer(4), bodies.said(5), bodies.said(6)]
    sent = {"messages": messages, "tools": bodies.TOOLS}
    assert json.loads(functions.apply_template(sent)) == json.loads(functions._render(sent)) | {"unenforced": [[]]}


@pytest.mark.parametrize("name", [GEMMA, MINISTRAL, "Apertus-8B-Instruct", "deepseek-ai-DeepSeek-V3.1"])
def test_a_turns_prompt_is_the_beginning_of_the_next_ones(name: str) -> None:
    functions = opened(name)

    def prompt(messages: list[dict[str, Any]]) -> str:
        inputs = {"messages": messages, "tools": bodies.TOOLS, "add_generation_prompt": False}
        return str(json.loads(functions.apply_template(inputs))["prompt"])

    turns = [
        [bodies.system(0), bodies.developer(1), bodies.user(2), bodies.user(3)],
        [bodies.called(bodies.LONG), bodies.returned(4), bodies.system(5), bodies.user(6)],
        [bodies.called("a", "b"), bodies.returned(7, "a"), bodies.returned(8, "b")],
        [bodies.said(9), bodies.user(10), bodies.developer(11)],
        [bodies.said(12), bodies.user(13)],
    ]
    prompts = [prompt([*chain(*turns[: n + 1])]) for n in range(len(turns))]
    for before, after in pairwise(prompts):
        assert after.startswith(before)
