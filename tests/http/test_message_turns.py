"""A model's reasoning, text and calls as the blocks of a message; and answers that go on where they were cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyllmcancel.server.anthropic.message_blocks import SIGNATURE
from tests.support.chat_models import CALL, Says
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
WEATHER = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TEXT = {"type": "text", "citations": None}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": SIGNATURE}


async def message_of(world: World, *, stream: bool, **fields: Any) -> dict[str, Any]:
    exchange = await world.post(
        "/v1/messages", {"messages": HELLO, "max_tokens": 200, "temperature": 0, "stream": stream} | fields
    )
    assert exchange.status == 200, exchange.body
    found: dict[str, Any] = added_up(exchange) if stream else exchange.json()
    return found


def added_up(exchange: Exchange) -> dict[str, Any]:
    """The message that the events of a stream add up to."""
    message: dict[str, Any] = {}
    for event in exchange.named_events():
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
            case "content_block_delta":
                kind, *texts = event["delta"].values()
                block = message["content"][event["index"]]
                name = {"input_json_delta": "partial_json", "signature_delta": "signature"}.get(kind, block["type"])
                block[name] = "".join([block.get(name, ""), *texts])
            case "content_block_stop" if "partial_json" in message["content"][-1]:
                message["content"][-1]["input"] = json.loads(message["content"][-1].pop("partial_json"))
            case "message_delta":
                message |= event["delta"]
    return message


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names and inputs."""
    return [(block["name"], block["input"]) for block in message["content"] if block["type"] == "tool_use"]


@streaming
async def test_what_the_model_thinks_is_a_block_of_its_own(stream: bool) -> None:
    async with open_world(model=Says("<think>hm</think>Hi.")) as world:
        message = await message_of(world, stream=stream)
        assert message["content"] == [THOUGHT, TEXT | {"text": "Hi."}]
        assert message["stop_reason"] == "end_turn"


@streaming
async def test_a_call_is_a_block_with_its_input(stream: bool) -> None:
    async with open_world(model=Says(f"<think>hm</think>I look.\n{CALL}")) as world:
        message = await message_of(world, stream=stream, tools=[WEATHER])
        assert [block["type"] for block in message["content"]] == ["thinking", "text", "tool_use"]
        assert calls_of(message) == [("get_weather", {"city": "Paris"})]
        assert message["stop_reason"] == "tool_use"


@streaming
async def test_a_call_that_max_tokens_cuts_has_no_value_that_was_cut(stream: bool) -> None:
    async with open_world(model=Says(CALL)) as world:
        cut = len(CALL[: CALL.index("aris")])
        message = await message_of(world, stream=stream, tools=[WEATHER], max_tokens=cut)
        assert calls_of(message) == [("get_weather", {})]
        assert message["stop_reason"] == "max_tokens"


@streaming
async def test_an_answer_goes_on_with_the_assistants_message_and_does_not_tell_it_again(stream: bool) -> None:
    async with open_world(model=Says("<think></think>The best answer is B.")) as world:
        begun = {"role": "assistant", "content": [{"type": "text", "text": "The best answer"}]}
        message = await message_of(world, stream=stream, messages=[*HELLO, begun])
        assert message["content"] == [TEXT | {"text": " is B."}]


async def test_thoughts_that_are_sent_back_are_part_of_the_prompt() -> None:
    thoughts = {"type": "thinking", "thinking": "a long thought", "signature": SIGNATURE}
    call = {"type": "tool_use", "id": "abcdefghi", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "abcdefghi", "content": "sunny"}]}
    async with open_world(model=Says("Hi.")) as world:
        counted = []
        for content in ([call], [thoughts, call]):
            messages = [*HELLO, {"role": "assistant", "content": content}, result]
            counted.append((await world.post("/v1/messages/count_tokens", {"messages": messages})).json())
        assert counted[1]["input_tokens"] >= counted[0]["input_tokens"] + len("a long thought")


async def test_thinking_stops_at_its_budget() -> None:
    async with open_world(model=Says(f"<think>{'hm ' * 50}</think>Hi.")) as world:
        thinking = {"type": "enabled", "budget_tokens": 10}
        message = await message_of(world, stream=False, thinking=thinking)
        assert message["content"][0]["thinking"] == ("hm " * 4)[:10]
