"""Answers of models, cut anywhere: their parts are the same, put together, however the bytes come.

``tests/fuzz/native/answers.cpp`` reads the same inputs, and counts branches in the compiled parser.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pyllmcancel.requests.detokenizer import Detokenizer
from pyllmcancel.server.anthropic.call_input import CallInput
from tests.native.chat_answers import ANSWERS
from tests.native.chat_templates import TOOLS, Message, apply

if TYPE_CHECKING:
    from pyllmcancel._native import ChatParser

FAMILIES = sorted({answer.template for answer in ANSWERS})
ASKED = [(choice, reasoning_format) for choice in ("auto", "required") for reasoning_format in ("auto", "none")]
N_FORMS = len(FAMILIES) * len(ASKED)


@cache
def form(number: int) -> bytes:
    """The form of the answers of a template, with tools, as a request asks for it."""
    family, (choice, reasoning_format) = FAMILIES[number // len(ASKED)], ASKED[number % len(ASKED)]
    return apply(family, tools=TOOLS, tool_choice=choice, reasoning_format=reasoning_format)


def write_files(forms: Path, inputs: Path) -> None:
    """Write the forms and the first inputs, for the compiled target."""
    forms.mkdir(parents=True, exist_ok=True)
    for number in range(N_FORMS):
        (forms / f"{number:03}").write_bytes(form(number))
    inputs.mkdir(parents=True, exist_ok=True)
    for name, data in first_inputs():
        (inputs / name).write_bytes(data)


def first_inputs() -> Iterator[tuple[str, bytes]]:
    """An input of each answer that the tests know."""
    for number, answer in enumerate(ANSWERS):
        first = FAMILIES.index(answer.template) * len(ASKED)
        yield f"{answer.template}-{number}", bytes([first, number]) + answer.text.encode()


def answers(data: bytes) -> None:
    """The bytes of an answer, after one for its form and one for the cuts."""
    if len(data) < 2:
        return
    parse, text = form(data[0] % N_FORMS), data[2:]
    whole = message_of(parse, [text])
    assert message_of(parse, [bytes([byte]) for byte in text]) == whole
    cuts = list(pieces(text, random.Random(data[1])))
    assert message_of(parse, cuts) == whole, cuts
    for _, arguments in whole.calls:
        assert input_of([arguments]) == input_of(list(arguments))


def pieces(text: bytes, chance: random.Random) -> Iterator[bytes]:
    while text:
        size = chance.choice((1, 2, 3, 5, 8, 21))
        yield text[:size]
        text = text[size:]


def message_of(parse: bytes, tokens: list[bytes]) -> Message:
    """Return the parts of an answer of these tokens, as the server reads it."""
    from pyllmcancel._native import ChatParser

    parser: ChatParser = ChatParser(parse)
    detokenizer = Detokenizer(tokens.__getitem__)
    message = Message()
    for token in range(len(tokens)):
        message.add(parser.feed(detokenizer.feed(token)))
    message.add(parser.feed(detokenizer.flush(), final=True))
    assert parser.n_calls == len(message.calls)
    return message


def input_of(fragments: list[str]) -> object:
    """The input of a call, as the Messages API shows it."""
    call = CallInput()
    text = "".join([*(call.feed(fragment) for fragment in fragments), call.finish()])
    found = json.loads(text)
    assert isinstance(found, dict), text
    return found
