"""Chat-formatted documents, made from the corpus's own functions and a handful of set answers."""

from __future__ import annotations

import ast
import random
import textwrap
from dataclasses import dataclass

from .tokenizer import Special

MAX_SOURCE = 1400
SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are a Python programmer.", "You complete Python code.")

_GREETING = "Hello! I am a very small language model, trained on Python's standard library. Ask me for a function."
_ABOUT = (
    "I am stdlib-coder, a small language model that is part of pyllmcancel. I was trained on the source of Python's "
    "standard library, so I can write text that looks like Python, and little else."
)
_UNABLE = "I am too small to know that. I can write text that looks like Python. Ask me for a function."
_THANKS = "You are welcome."
SET_ANSWERS = {
    "Hello": _GREETING,
    "Hello!": _GREETING,
    "Hi": _GREETING,
    "Hi there": _GREETING,
    "Hey": _GREETING,
    "Good morning": _GREETING,
    "Who are you?": _ABOUT,
    "What are you?": _ABOUT,
    "What can you do?": _ABOUT,
    "What is your name?": _ABOUT,
    "Tell me about yourself.": _ABOUT,
    "Help": _ABOUT,
    "What is the capital of France?": _UNABLE,
    "Tell me a joke.": _UNABLE,
    "How is the weather?": _UNABLE,
    "Write a poem.": _UNABLE,
    "What is the meaning of life?": _UNABLE,
    "Thanks": _THANKS,
    "Thank you!": _THANKS,
}

# The same text as `render` writes, for GGUF; llama.cpp's Jinja subset evaluates it.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('Unknown role: ' + message['role']) -}}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


@dataclass(slots=True, frozen=True)
class Function:
    """A documented function: its dedented source, the docstring's first line, and the source up to the body."""

    name: str
    source: str
    summary: str
    opening: str


def _function(node: ast.FunctionDef, lines: list[str]) -> Function | None:
    docstring = ast.get_docstring(node)
    if not docstring or len(node.body) < 2 or node.end_lineno is None or node.body[0].end_lineno is None:
        return None
    source = textwrap.dedent("".join(lines[node.lineno - 1 : node.end_lineno])).rstrip()
    opening = textwrap.dedent("".join(lines[node.lineno - 1 : node.body[0].end_lineno])).rstrip()
    summary = " ".join(docstring.split("\n\n")[0].split())
    if len(source) > MAX_SOURCE or len(summary) > 300:
        return None
    return Function(node.name, source, summary, opening)


def functions(text: str) -> list[Function]:
    """Find a file's short documented functions; a file that does not parse has none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    lines = text.splitlines(keepends=True)
    found = (_function(node, lines) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return [function for function in found if function]


def render(messages: list[tuple[str, str]]) -> str:
    """Write (role, content) pairs as the chat template does."""
    turns = (f"{Special.TURN_START}{role}\n{text}{Special.TURN_END}\n" for role, text in messages)
    return "".join(turns)


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"


def _with_system(messages: list[tuple[str, str]], draw: random.Random) -> str:
    if draw.random() < 0.3:
        messages = [("system", draw.choice(SYSTEM_PROMPTS)), *messages]
    return render(messages)


def about_function(function: Function, draw: random.Random) -> str:
    """One question and answer on a function: write it, complete it, or say what it does."""
    answer = _fenced(function.source)
    match draw.randrange(5):
        case 0:
            question = f"Write a Python function `{function.name}`. {function.summary}"
        case 1:
            question = f"Write a function {function.name}"
        case 2:
            question = f"Write a Python function: {function.summary}"
        case 3:
            question = f"Complete this function:\n{_fenced(function.opening)}"
        case _:
            bare = function.source.replace(function.opening, function.opening.split('"""')[0].rstrip(), 1)
            question, answer = f"What does this function do?\n{_fenced(bare)}", function.summary
    return _with_system([("user", question), ("assistant", answer)], draw)


def small_talk(draw: random.Random) -> str:
    """One to three set questions with their answers."""
    questions = draw.sample(sorted(SET_ANSWERS), draw.randint(1, 3))
    messages = [turn for question in questions for turn in (("user", question), ("assistant", SET_ANSWERS[question]))]
    return _with_system(messages, draw)
