"""An answer's parts as Anthropic's blocks: in a stream, and whole; both say the same."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pyllmcancel.events import Delta, FinishReason, Usage
from pyllmcancel.requests.params import GenerationParams
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.server.anthropic.body import MessagesBody
from pyllmcancel.server.anthropic.dialect import MessagesDialect
from pyllmcancel.server.anthropic.message_blocks import INVALID, CallInput
from pyllmcancel.server.bodies import FieldNames
from pyllmcancel.server.chat.answer_parser import Arguments, CallBegins, Content, Part, Reasoning
from pyllmcancel.server.chat.turn import ChatTurn
from pyllmcancel.server.http.exchange import Exchange

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
USAGE = Usage(prompt_tokens=7, completion_tokens=5, cached_tokens=3)
LAST = Delta(0, "", finish_reason=FinishReason.STOP)
CUT = replace(LAST, finish_reason=FinishReason.LENGTH)


class Script:
    """A parser that finds these parts: one for each character that it is fed, the rest at the end."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)
        self.n_calls = sum(isinstance(part, CallBegins) for part in parts)

    def feed(self, delta: Delta) -> Iterator[Part]:
        for _ in delta.text:
            yield self._parts.pop(0)
        if delta.finish_reason is not None:
            yield from self._parts


def dialect_of(
    parts: Sequence[Part], *, eager_tools: Sequence[str] = (), n_ctx: int = 100, **fields: Any
) -> MessagesDialect:
    tools = [{"name": name, "input_schema": {}, "eager_input_streaming": True} for name in eager_tools]
    messages = [{"role": "user", "content": "hello"}]
    body = MessagesBody.model_validate({"max_tokens": 9, "messages": messages, "tools": tools} | fields)
    state = SimpleNamespace(model_name="model", n_ctx=n_ctx)
    params = GenerationParams(sampling=SamplingParams())
    turn = ChatTurn(cast("Any", None), [[1] * 7], params, FieldNames(), [], lambda: Script(parts))
    return MessagesDialect(cast("Any", SimpleNamespace(body=body, state=state, exchange=Exchange())), turn)


def whole(parts: Sequence[Part], last: Delta = LAST, usage: Usage = USAGE, **options: Any) -> dict[str, Any]:
    deltas = [Delta(0, "." * len(parts)), last]
    found: dict[str, Any] = dict(dialect_of(parts, **options).whole(deltas, usage))
    Message.model_validate(found, strict=True)
    return found


def streamed(parts: Sequence[Part], last: Delta = LAST, **options: Any) -> list[dict[str, Any]]:
    dialect = dialect_of(parts, **options)
    deltas = [*(Delta(0, ".") for _ in parts[:-1]), last]
    events: list[Any] = [*dialect.opening(), *(event for delta in deltas for event in dialect.chunks(delta))]
    events += dialect.closing(USAGE)
    for event in events:
        if event["type"] != "ping":
            EVENT.validate_python(event, strict=True)
    return events


def kinds(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event.get("delta", event).get("type", event["type"]) for event in events]


THOUGHT = [Reasoning("I "), Reasoning("think")]
SAID = [Content("Hello"), Content(" there")]
CALL = [CallBegins(0, "f", "call_1"), Arguments(0, '{"a": [1'), Arguments(0, "]}")]
OTHER = [CallBegins(1, "g", "call_2")]
SCRIPTS: dict[str, list[Part]] = {
    "nothing": [],
    "text": SAID,
    "reasoning and text": [*THOUGHT, *SAID],
    "reasoning and a call": [*THOUGHT, *CALL],
    "all, and two calls": [*THOUGHT, *SAID, *CALL, *OTHER],
    "text behind a call": [*CALL, *SAID],
    "reasoning between": [*SAID, *THOUGHT, *SAID],
    "no JSON": [CallBegins(0, "f", "call_1"), Arguments(0, "ls"), Arguments(0, " -l")],
    "a call that breaks off": [CallBegins(0, "f", "call_1"), Arguments(0, '{"a": 1, "b": "cu')],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_stream_adds_up_to_the_whole_answer(name: str) -> None:
    parts = SCRIPTS[name]
    events = streamed(parts)
    message = events[0]["message"]
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(message["content"])
                message["content"].append(block | {"partial": ""})
            case {"type": "content_block_delta", "index": index, "delta": {"type": kind, **delta}}:
                assert index == len(message["content"]) - 1
                block = message["content"][index]
                name = {"input_json_delta": "partial", "signature_delta": "signature"}.get(kind, block["type"])
                block[name] += next(iter(delta.values()))
            case {"type": "message_delta", "delta": end, "usage": usage}:
                message |= end | {"usage": usage}
    for block in message["content"]:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            block["input"] = TypeAdapter(dict[str, Any]).validate_json(partial)
    assert message == whole(parts)


def test_a_block_ends_before_the_next_one_begins() -> None:
    assert kinds(streamed([*THOUGHT, *SAID, *CALL, *OTHER])) == [
        *("message_start", "ping"),
        *("content_block_start", "thinking_delta", "thinking_delta", "signature_delta", "content_block_stop"),
        *("content_block_start", "text_delta", "text_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "input_json_delta", "content_block_stop"),
        *("content_block_start", "input_json_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]


@pytest.mark.parametrize(
    ("parts", "last", "usage", "expected"),
    [
        (SAID, LAST, USAGE, ("end_turn", None)),
        (CALL, LAST, USAGE, ("tool_use", None)),
        (CALL, CUT, USAGE, ("max_tokens", None)),
        (SAID, CUT, USAGE, ("max_tokens", None)),
        (SAID, CUT, Usage(7, 93), ("model_context_window_exceeded", None)),
        (SAID, replace(LAST, stop_text="END"), USAGE, ("stop_sequence", "END")),
        (SAID, replace(LAST, stop_text="<the template's>"), USAGE, ("end_turn", None)),
    ],
)
def test_why_it_stopped(parts: list[Part], last: Delta, usage: Usage, expected: tuple[str, str | None]) -> None:
    message = whole(parts, last, usage, stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == expected


def test_a_tool_that_is_streamed_eagerly_is_told_as_it_is_written() -> None:
    parts = [CallBegins(0, "f", "call_1"), Arguments(0, '{"a": "lo'), Arguments(0, 'ng"}')]
    events = streamed(parts, eager_tools=["f"])
    told = [event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("partial_json")]
    assert told == ['{"a": "lo', 'ng"}']
    assert whole(parts, eager_tools=["f"])["content"][0]["input"] == {"a": "long"}


TRICKY = {"text": 'a "}, {" and a \\ and \u00e9', "list": [{"x": [1, "]"]}, {}], "": None, "n": -1.5e3}


def told(*fragments: str) -> str:
    found = CallInput()
    return "".join([*map(found.feed, fragments), found.finish()])


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": {}, "b": []}, TRICKY], ids=str)
@pytest.mark.parametrize("indent", [None, 2])
def test_an_object_is_told_whole_wherever_it_is_cut(value: dict[str, Any], indent: int | None) -> None:
    text = f" {json.dumps(value, indent=indent)}\n"
    assert json.loads(told(text)) == value
    assert json.loads(told(*text)) == value
    for cut in range(len(text)):
        assert json.loads(told(text[:cut], text[cut:])) == value


def test_members_are_told_when_they_are_whole() -> None:
    found = CallInput()
    pieces = [found.feed(piece) for piece in ('{"a"', ': 1, "b": "x', ", y", '", "c": 2', "}")]
    assert pieces == ["", '{"a": 1', "", ', "b": "x, y"', ', "c": 2']
    assert found.finish() == "}"


@pytest.mark.parametrize(
    ("text", "whole", "is_json"),
    [
        ("", {}, True),
        ("{", {}, True),
        ('{"a": 1, "b": "cut o', {"a": 1}, True),
        ('{"a": 1, "b": [1, 2', {"a": 1}, True),
        ('{"a": 12', {}, True),
        ("ls -l", {}, False),
        ('"text"', {}, False),
        ("{a: 1}", {}, False),
        ('{"a": 1, b}', {"a": 1}, False),
        ('{"a": 1, "b": nul, "c": 2}', {"a": 1}, False),
        ('{"a": 1,}', {"a": 1}, False),
        ('{"a": 1} and more', {"a": 1}, False),
        ('{"a": 1]', {"a": 1}, False),
        ("{,}", {}, False),
        ('{"a": "\\x"}', {}, False),
    ],
)
def test_an_input_has_only_whole_members_and_the_text_of_one_that_is_no_json(
    text: str, whole: dict[str, Any], is_json: bool
) -> None:
    expected = whole if is_json else whole | {INVALID: text}
    assert json.loads(told(text)) == json.loads(told(*text)) == expected


@given(st.lists(st.sampled_from([*'{}[],:" \\', "a", '"a"', '"b": 1', "1", "true", "é"]), max_size=12))
def test_whatever_is_written_is_told_as_an_object(fragments: list[str]) -> None:
    found = json.loads(told(*fragments))
    assert isinstance(found, dict)
    assert found == json.loads(told("".join(fragments)))
    if INVALID in found:
        assert found[INVALID] == "".join(fragments)
