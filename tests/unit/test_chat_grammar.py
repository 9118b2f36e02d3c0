"""llama.cpp's grammars of tool calls, narrowed to what a request asks for; from the real templates of models."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.chat.grammar import has_raw_texts, narrowed
from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.errors import InvalidRequestError
from tests.support.marks import mostly_long

TEMPLATES = sorted((Path(__file__).parents[2] / "vendor/llama.cpp/models/templates").glob("*.jinja"))
FEW = [path for path in TEMPLATES if "Qwen" in path.stem or "gpt-oss" in path.stem]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
# In these forms a text before the call, or reasoning, cannot be told apart in the grammar.
WITH_TEXT = ("Kimi-K3", "inclusionai-ling-3.0-flash", "openbmb-MiniCPM5-1B")


@cache
def opened(path: Path) -> Functions:
    """Opening takes fifty times as long as what is then tested."""
    functions = Functions()
    functions.open_template(path.read_text("utf-8"), "<s>", "</s>", "")
    return functions


def grammar_of(path: Path, **inputs: Any) -> str:
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **inputs}
    try:
        found = json.loads(opened(path).apply_template(asked))
    except InvalidRequestError:
        return ""
    return str(found["grammar"])


def root_of(grammar: str) -> str:
    (root,) = re.findall(r"^root ::= (.*)$", grammar, re.MULTILINE)
    return str(root)


@pytest.mark.parametrize("path", mostly_long(TEMPLATES, *FEW), ids=lambda path: path.stem)
def test_a_call_that_is_required_has_no_free_text_before_it(path: Path) -> None:
    grammar = grammar_of(path, tool_choice="required")
    if not grammar:
        return  # a form without a grammar: the call cannot be forced
    root = root_of(narrowed(grammar, required=True, parallel=True))
    while (outside := re.sub(r"\([^()]*\)", "", root)) != root:
        root = outside
    assert ("until-" in root) == (path.stem in WITH_TEXT)
    assert "any)*" not in root


@pytest.mark.parametrize("path", mostly_long(TEMPLATES, *FEW), ids=lambda path: path.stem)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_one_call_is_one_call(path: Path, choice: str) -> None:
    grammar = grammar_of(path, tool_choice=choice, parallel_tool_calls=False)
    assert not re.search(r"tool-call\?? space\)\+", narrowed(grammar, required=False, parallel=False))


@pytest.mark.parametrize("path", mostly_long(TEMPLATES, *FEW), ids=lambda path: path.stem)
@pytest.mark.parametrize("asked", [{"tools": TOOLS}, {"tools": [], "json_schema": CITY}], ids=["tools", "schema"])
def test_names_and_numbers_around_an_answer_have_an_end(path: Path, asked: dict[str, Any]) -> None:
    rules = narrowed(grammar_of(path, **asked), required=False, parallel=True).splitlines()
    marked = [rule for rule in rules if "constrain|" in rule or '"functions." "weather"' in rule]
    assert [rule for rule in marked if re.search(r"\[[A-Za-z0-9_-]+\]\+", rule)] == []


def test_what_is_not_asked_for_stays() -> None:
    grammar = 'root ::= "a" until-3? tool-calls\ntool-calls ::= (tool-call space)+'
    assert narrowed(grammar, required=False, parallel=True) == grammar


@pytest.mark.parametrize(
    ("name", "raw"),
    [("Qwen3-Coder", True), ("GLM-4.6", True), ("Qwen-Qwen3-0.6B", False), ("openai-gpt-oss-120b", False)],
)
def test_arguments_that_are_written_as_they_are(name: str, raw: bool) -> None:
    (path,) = (one for one in TEMPLATES if one.stem == name)
    assert has_raw_texts(grammar_of(path, tool_choice="required")) is raw


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ("root ::= char{1,2000}", "root ::= char{1,2000}"),
        ("root ::= char{1,5000}", "root ::= char{1,}"),
        ("root ::= char{3000} x{5}", "root ::= char{2000,} x{5}"),
        ("root ::= char{9000,}", "root ::= char{2000,}"),
        ('root ::= "a\\"{1,5000}" [{1,5000}]', 'root ::= "a\\"{1,5000}" [{1,5000}]'),
    ],
)
def test_repetitions_end_where_the_parser_gives_up(grammar: str, expected: str) -> None:
    assert narrowed(grammar, required=False, parallel=True) == expected
