"""Telling calls from text as it comes: whole, and cut anywhere."""

from __future__ import annotations

import json

import pytest

from pyllmcancel.constraints.tool_formats import GENERIC, HERMES, LLAMA3, MISTRAL, MISTRAL_V11, ToolFormat
from pyllmcancel.server.chat.tool_calls import Arguments, CallBegins, Content, Part, ToolCallParser

PARIS = '{"city": "Paris"}'
TRICKY = json.dumps({"text": 'a "}" and a \\ and </tool_call>', "list": [{"x": [1]}, {}]})


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


# Format, text, content, calls.
TABLE: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (HERMES, "Hello.", "Hello.", []),
    (HERMES, "a < b <tool", "a < b <tool", []),
    (HERMES, "ends in blanks \n", "ends in blanks \n", []),
    (HERMES, "", "", []),
    (HERMES, hermes("f", PARIS), "", [("f", PARIS)]),
    (HERMES, "I look.\n\n" + hermes("f", PARIS), "I look.", [("f", PARIS)]),
    (HERMES, hermes("f", PARIS) + "\n" + hermes("g", "{}"), "", [("f", PARIS), ("g", "{}")]),
    (HERMES, hermes("f", TRICKY), "", [("f", TRICKY)]),
    (HERMES, hermes("a.b/c-d", " {}"), "", [("a.b/c-d", "{}")]),
    (HERMES, '<tool_call>{"name":"f","arguments":{}}</tool_call>', "", [("f", "{}")]),
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"city": "Pa', "", [("f", '{"city": "Pa')]),
    (HERMES, '<tool_call>\n{"name": "f"', '<tool_call>\n{"name": "f"', []),
    (HERMES, hermes("f", "{}") + '\n<tool_call>\n{"na', "", [("f", "{}")]),
    (LLAMA3, '{"name": "f", "parameters": ' + PARIS + "}", "", [("f", PARIS)]),
    (LLAMA3, '\n{ "name" : "f" , "parameters" : {} }', "", [("f", "{}")]),
    (LLAMA3, '{"sum": 3}', '{"sum": 3}', []),
    (LLAMA3, 'See {"name": "f", "parameters": {}}', 'See {"name": "f", "parameters": {}}', []),
    (LLAMA3, '{"na', '{"na', []),
    (GENERIC, '{"name": "f", "arguments": ' + TRICKY + "}", "", [("f", TRICKY)]),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": ' + PARIS + "}]", "", [("f", PARIS)]),
    (
        MISTRAL,
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"name": "g", "arguments": ' + PARIS + "}]",
        "",
        [("f", "{}"), ("g", PARIS)],
    ),
    (MISTRAL_V11, "Well.[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]" + PARIS, "Well.", [("f", "{}"), ("g", PARIS)]),
]


def parse(form: ToolFormat, pieces: list[str]) -> list[Part]:
    parser = ToolCallParser(form)
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return [*parts, *parser.finish()]


def gather(parts: list[Part]) -> tuple[str, list[tuple[str, str]]]:
    content = ""
    calls: list[tuple[str, str]] = []
    for part in parts:
        match part:
            case Content(text=text):
                content += text
            case CallBegins(index=index, name=name):
                assert index == len(calls)
                calls.append((name, ""))
            case Arguments(index=index, text=text):
                assert index == len(calls) - 1, "fragments come with their call"
                calls[index] = (calls[index][0], calls[index][1] + text)
    return content, calls


@pytest.mark.parametrize(("form", "text", "content", "calls"), TABLE)
def test_an_answer_is_told_apart(form: ToolFormat, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert gather(parse(form, [text])) == (content, calls)


@pytest.mark.parametrize(("form", "text", "content", "calls"), TABLE)
def test_it_is_so_wherever_the_text_is_cut(
    form: ToolFormat, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert gather(parse(form, list(text))) == (content, calls)
    for position in range(len(text)):
        assert gather(parse(form, [text[:position], text[position:]])) == (content, calls)


def test_content_is_not_held_back_without_a_reason() -> None:
    parser = ToolCallParser(HERMES)
    assert list(parser.feed("Hello, ")) == [Content("Hello,")]
    assert list(parser.feed("you <")) == [Content(" you")]
    assert list(parser.feed("b> me")) == [Content(" <b> me")]


def test_a_name_is_told_before_its_arguments_and_they_in_fragments() -> None:
    parser = ToolCallParser(HERMES)
    assert list(parser.feed('<tool_call>\n{"name": "f", "arguments":')) == [CallBegins(0, "f")]
    assert list(parser.feed(' {"a"')) == [Arguments(0, '{"a"')]
    assert list(parser.feed(": 1}}\n</tool")) == [Arguments(0, ": 1}")]
    assert list(parser.feed("_call>")) == []
    assert list(parser.finish()) == []
