"""ChatParser: answers of each family, however they are cut; and what a model gets wrong is text, in bounded time."""

import json
import os
import random
import threading
from typing import Any

import pytest

from pyllmcancel._native import ChatParser
from pyllmcancel.errors import UsageError
from tests.native import chat_answers as family
from tests.native.chat_answers import ANSWERS, QWEN, WEATHER, Answer, tagged
from tests.native.chat_templates import ALL, TOOLS, Message, apply, function, parse, parse_everywhere
from tests.native.conftest import World
from tests.native.test_lazy_grammar import Dictated, grammar_of

WORLDS = ["real attention"]
ROWS = [function("write", ["rows"], rows="array")]
ROWS[0]["function"]["parameters"]["properties"]["rows"]["items"] = {"type": "integer"}


def named(answers: list[Answer]) -> Any:
    return pytest.mark.parametrize("answer", answers, ids=[answer.name for answer in answers])


@named(ANSWERS)
def test_an_answer_is_understood_however_it_is_cut(answer: Answer) -> None:
    message = parse_everywhere(apply(answer.template, tools=TOOLS), answer.text)
    assert (message.content, message.reasoning) == (answer.content, answer.reasoning)
    assert message.objects() == answer.calls
    assert answer.ids is None or message.ids == answer.ids


# Without a template for calls there is no grammar for them either; Llama 3's calls have no mark that could wake one.
WITH_GRAMMAR = [answer for answer in ANSWERS if answer.calls]


@named(WITH_GRAMMAR)
def test_the_grammar_allows_each_token_of_a_call(world: World, answer: Answer) -> None:
    form = json.loads(apply(answer.template, tools=TOOLS))
    dictated = Dictated(world, **grammar_of(form))
    assert dictated.say(answer.text)
    # It was awake: no text follows the calls.
    assert dictated.say("no text") is not form["grammar_lazy"]


@named([answer for answer in WITH_GRAMMAR if not answer.content])
def test_a_grammar_that_wants_a_call_allows_it(world: World, answer: Answer) -> None:
    form = json.loads(apply(answer.template, tools=TOOLS, tool_choice="required"))
    assert Dictated(world, **grammar_of(form)).say(answer.text)


FRAGMENTS = [*'<{]"\\\nö1-,', "<tool_call>", "</think>", "<|end|>", "[ARGS]", "null", "\\u1"]


def spoiled(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(text) + 1)
        match chance.randrange(3):
            case 0:
                text = text[:place] + chance.choice(FRAGMENTS) + text[place:]
            case 1:
                text = text[:place] + text[place + chance.choice([1, 3, 10]) :]
            case 2:
                text = text[:place]
    return text


@pytest.mark.long
@pytest.mark.parametrize("template", sorted({answer.template for answer in ANSWERS}))
@pytest.mark.parametrize("reasoning_format", ["auto", "none"])
def test_a_spoiled_answer_has_the_same_parts_however_it_is_cut(template: str, reasoning_format: str) -> None:
    chance = random.Random(template)
    texts = [answer.text for answer in ANSWERS if answer.template == template]
    for choice in ("auto", "required"):
        form = apply(template, tools=TOOLS, tool_choice=choice, reasoning_format=reasoning_format)
        for _ in range(60):
            text = spoiled(chance.choice(texts), chance)
            whole = parse(form, text)
            assert parse(form, *text) == whole, text
            cut = chance.randrange(len(text) + 1)
            assert parse(form, text[:cut], text[cut:]) == whole, text


@pytest.mark.parametrize(
    ("template", "text", "message"),
    [
        # A function that there is not.
        (QWEN, 'So: <tool_call>\n{"name": "fly", ', Message('So: <tool_call>\n{"name": "fly", ')),
        # JSON that breaks off into something else.
        (QWEN, '<tool_call>\n{"name": "add", "arguments": {"a": 1]}', Message("]}", "", [("add", '{"a": 1')], [""])),
        # A second call that is wrong: the first one stays.
        (
            QWEN,
            tagged(WEATHER) + "\n<tool_call>?",
            Message("\n</tool_call>\n<tool_call>?", "", [("get_weather", '{"city": "Köln"}')], [""]),
        ),
        (family.CODER, "<tool_call>\n<function=fly>", Message("<tool_call>\n<function=fly>")),
        (
            family.QWEN_3_5,
            f"</think>\n\n<tool_call>\n{family.XML_WEATHER}<oops>",
            Message("<oops>", "", [("get_weather", '{"city":"Köln"}')], [""]),
        ),
        # No channel at all.
        (family.HARMONY, "Just text.", Message("Just text.")),
        # An identifier that does not come.
        (family.NEMO, '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1', Message("", "", [("add", '{"a": 1')], [""])),
        # A mark that ends the answer, and one that does not.
        (family.HARMONY, "<|channel|>final<|message|>Yes.<|end|>", Message("Yes.")),
        (family.HARMONY, "<|channel|>final<|message|>Yes.<|end|>No.", Message("Yes.<|end|>No.")),
        # What looks like a mark at the end of all.
        (QWEN, "if a <", Message("if a <")),
        (QWEN, "<think>\nif a </think", Message("", "if a </think")),
        (family.GEMMA_4, "Well, <|tool", Message("Well, <|tool")),
    ],
)
def test_what_is_no_call_is_text(template: str, text: str, message: Message) -> None:
    assert parse_everywhere(apply(template, tools=TOOLS), text) == message


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "<" * 100_000,
        '"' * 100_000,
        "\\" * 100_000,
        '<tool_call>\n{"name": "write", "arguments": {"rows": ' + "[" * 100_000,
        '<tool_call>\n{"name": "write", "arguments": {"rows": ' + "[1," * 100_000,
        "<tool_call>write\n<arg_key>rows</arg_key>\n<arg_value>" + "[" * 100_000,
        "<tool_call>\n<function=write>\n<parameter=rows>\n" + "[" * 100_000,
        "<|tool_call>call:write{rows:" + "[" * 100_000,
        "</mm:think>]<]minimax[>[<tool_call>\n" + ']<]minimax[>[<invoke name="write">]<]minimax[>[<rows>' * 20_000,
        "<|channel|>commentary to=functions.write <|constrain|>json<|message|>" + '{"rows":' * 50_000,
        "<tool_call>\n" * 50_000,
        "\ud800" * 10 + "\x00" * 10,
    ],
)
def test_no_text_does_harm(text: str) -> None:
    """In a thread with a small stack: nothing recurses as deep as the text is nested."""
    found: list[str] = []

    def read() -> None:
        for template in (QWEN, family.CODER, family.GLM, family.HARMONY, family.GEMMA_4, family.MINIMAX, family.NEMO):
            form = apply(template, tools=ROWS)
            message = parse(form, text, text[:1_000])
            in_pieces = parse(form, *(text[at : at + 7] for at in range(0, 20_000, 7)))
            found.append(message.content + in_pieces.content)

    # A sanitizer's frames are larger, and llama.cpp recurses into Gemma 4's arguments, as deep as they are read.
    before = threading.stack_size((8192 if "PYLLMCANCEL_SANITIZED" in os.environ else 512) * 1024)
    try:
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(found) == 7


@pytest.mark.parametrize("name", ALL)
def test_after_any_answer_the_parser_can_be_used(name: str) -> None:
    parser = ChatParser(apply(name, tools=TOOLS))
    parser.feed("Some text </think> <|end|> {", final=True)
    assert all(part[0] in {"content", "reasoning"} for part in parser.feed(" and more"))


def test_choices_share_a_form() -> None:
    first = ChatParser(apply(QWEN, tools=TOOLS))
    # A text that is no form shows that it is not read.
    second = ChatParser(b"", first)
    assert first.feed("<think>\nyes") == [("reasoning", "yes")]
    assert second.feed(tagged(WEATHER)) == [("call", 0, "get_weather", ""), ("arguments", 0, '{"city": "Köln"}')]
    assert (first.n_calls, second.n_calls) == (0, 1)


def test_a_form_means_the_same_whatever_was_read_in_between() -> None:
    tools = [[function(f"tool_{n}", ["city"], city="string")] for n in range(12)]
    forms = [apply(QWEN, tools=each) for each in tools]
    for _ in range(2):
        for n, form in enumerate(forms):
            assert parse(form, tagged((f"tool_{n}", {"city": "Bonn"}))).objects() == [(f"tool_{n}", {"city": "Bonn"})]


def test_parts_come_as_soon_as_they_are_certain() -> None:
    parser = ChatParser(apply(QWEN, tools=TOOLS))
    assert parser.feed("a < b, <tool") == [("content", "a < b, ")]
    assert parser.feed("box>") == [("content", "<toolbox>")]
    assert parser.feed('<tool_call>\n{"name": "add"') == [("call", 0, "add", ""), ("arguments", 0, "{")]
    assert parser.feed(', "arguments": {"a": 12') == [("arguments", 0, '"a": 12')]
    assert parser.feed("3, ") == [("arguments", 0, "3,")]
    assert parser.feed('"b"') == [("arguments", 0, ' "b"')]


def form_of(*parsers: dict[str, Any]) -> bytes:
    """Return the form of an answer that the first of these parsers reads."""
    return json.dumps({"parser": json.dumps({"parsers": parsers, "rules": {}, "root": 0})}).encode()


def test_a_form_without_a_parser_is_content() -> None:
    assert parse(b"{}", "<think> any", "thing").content == "<think> anything"


@pytest.mark.parametrize(
    "form",
    [
        b"",
        b"7",
        b'{"parser": "{"}',
        b'{"parser": "{}"}',
        b'{"parser": 1}',
        form_of(),
        form_of({"type": "tag", "tag": "x", "child": 7}),
        form_of({"type": "ref", "name": "x"}),
    ],
)
def test_what_is_no_form_is_refused(form: bytes) -> None:
    with pytest.raises(UsageError):
        ChatParser(form)


def test_a_form_that_goes_round_in_circles_is_left() -> None:
    assert parse(form_of({"type": "sequence", "children": [0]}), "some text").content == "some text"
