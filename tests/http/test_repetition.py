"""Answers that repeat themselves: their ends in each dialect, and what of them is left."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.http_world import World, open_world

ANSWER = b"Hi: " + b"ab " * 100
N_TOKENS = 64  # those of the second look: the first one finds a repetition of fewer tokens than the limit
STREAMED = ANSWER[:N_TOKENS].decode()
WHOLE = ANSWER[: N_TOKENS - 2 * len("ab ")].decode()
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
Read = Callable[[dict[str, Any]], tuple[object, ...]]


def of_choice(answer: dict[str, Any]) -> tuple[object, ...]:
    choice = answer["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return text, choice["finish_reason"], choice["stop_details"]


DIALECTS: dict[str, tuple[dict[str, Any], Read, object]] = {
    "/v1/completions": ({"prompt": "hello"}, of_choice, ("length", "repetition")),
    "/v1/chat/completions": (HELLO, of_choice, ("length", "repetition")),
    "/completion": (
        {"prompt": "hello"},
        lambda answer: (answer["content"], answer["stop_type"], answer["stop_details"]),
        ("limit", "repetition"),
    ),
    "/v1/messages": (
        HELLO,
        lambda answer: (answer["content"][0]["text"], answer["stop_reason"], answer["stop_details"]),
        ("max_tokens", {"type": "repetition"}),
    ),
    "/v1/responses": (
        {"input": "hello"},
        lambda answer: (answer["output"][0]["content"][0]["text"], answer["status"], answer["incomplete_details"]),
        ("incomplete", {"reason": "max_output_tokens", "stop_details": "repetition"}),
    ),
}


def teach(world: World) -> None:
    world.model.answers |= {b"hello": ANSWER, b"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n": ANSWER}


@pytest.mark.parametrize("path", DIALECTS)
async def test_a_whole_answer_says_why_it_ended_and_lacks_the_last_two_periods(path: str) -> None:
    body, read, said = DIALECTS[path]
    async with open_world(n_ctx=512) as world:
        teach(world)
        answer = await world.post(path, body | {"max_tokens": 200, "temperature": 0, "repetition_limit": 32})
        assert read(answer.json()) == (WHOLE, *said)  # type: ignore[misc]
        shown = (await world.get("/metrics")).body.decode()
    assert 'pyllmcancel_requests_total{outcome="repetition"} 1.0' in shown
    assert 'pyllmcancel_requests_total{outcome="length"} 0.0' in shown


@pytest.mark.parametrize(
    ("option", "field", "text"),
    [(0, 32, STREAMED), (32, None, STREAMED), (32, 0, ANSWER[:200].decode()), (32, False, ANSWER[:200].decode())],
)
async def test_the_field_goes_before_the_option_and_streams_keep_it(option: int, field: object, text: str) -> None:
    async with open_world(n_ctx=512, repetition_limit=option) as world:
        teach(world)
        given = {} if field is None else {"repetition_limit": field}
        exchange = await world.complete("hello", max_tokens=200, stream=True, **given).end()
        choices = [choice for event in exchange.json_events() for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == text
    assert (choices[-1].get("stop_details") == "repetition") is (text == STREAMED)
