"""Invalid requests are refused in words, with the field's name, before any event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyllmcancel.step import LogitFault
from tests.support.http_asgi import Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world

USER = {"role": "user", "content": "x"}


def assert_refused(exchange: Exchange, param: str | None, code: str | None = None) -> str:
    assert exchange.status == (415 if code == "unsupported_media_type" else 400), exchange.body
    assert exchange.headers["x-should-retry"] == "false"
    assert exchange.headers["content-type"] == "application/json"
    error = exchange.json()["error"]
    sizes = {"n_prompt_tokens", "n_ctx"} if error["code"] == "context_length_exceeded" else set()
    assert set(error) == {"message", "type", "param", "code", "request_id"} | sizes
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert error["request_id"] == exchange.headers["x-request-id"]
    if code is not None:
        assert error["code"] == code
    message: str = error["message"]
    return message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": "x" * 1024}, "prompt"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.5}, "min_p"),
        ({"top_k": 2**31}, "top_k"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": float("nan")}}, "logit_bias"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {str(2**40): 1}}, "logit_bias"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": 1}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": 1e300}, "timeout"),
        ({"stream_options": {"include_usage": "perhaps"}}, "stream_options"),
    ],
)
async def test_a_bad_field_is_named(world: World, fields: dict[str, Any], param: str, stream: bool) -> None:
    exchange = await world.post(COMPLETIONS, {"prompt": "x", "stream": stream} | fields)
    assert_refused(exchange, param)
    assert await world.requests() == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages"),
        ({"messages": [USER], "max_completion_tokens": -2}, "max_completion_tokens"),
        ({"messages": [USER], "top_logprobs": 21}, "top_logprobs"),
        ({"messages": [USER], "logprobs": 3}, "logprobs"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "messages"),
    ],
)
async def test_a_bad_chat_is_named(world: World, fields: dict[str, Any], param: str) -> None:
    assert_refused(await world.post(CHAT, fields), param)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "body"),
        *((body, "not valid JSON") for body in (b"{", b"{]", b'{"prompt": x}', b"\xff\xfe", b'{"prompt": "x"')),
        (b'{"prompt": "\xff"}', "unicode"),
        (b'{"prompt": "x", "n": ' + b"1" * 5000 + b"}", "number out of range"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_body_that_is_no_json_is_said_to_be_none(world: World, path: str, body: bytes, part: str) -> None:
    assert part in assert_refused(await world.post(path, body), None, "invalid_json")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("field", ["prompt", "session_id", "user", "\ud800", "messages"])
async def test_half_of_a_surrogate_pair_is_no_text(world: World, path: str, field: str) -> None:
    body = {"prompt": "x"} if path == COMPLETIONS else {"messages": [USER]}
    value = [{"role": "user", "content": "x", "name": "\ud800"}] if field == "messages" else "\ud800"
    assert "surrogate" in assert_refused(await world.post(path, body | {field: value}), None)


@pytest.mark.parametrize("body", ["[]", "1", "null", '"x"'])
async def test_a_body_that_is_no_object(world: World, body: str) -> None:
    assert_refused(await world.post(COMPLETIONS, body.encode()), None, "invalid_request")


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain"])
async def test_json_that_is_not_sent_as_json_is_told_how(world: World, content_type: str) -> None:
    exchange = await world.post(COMPLETIONS, {"prompt": "x"}, headers={"content-type": content_type})
    assert "Content-Type: application/json" in assert_refused(exchange, None, "unsupported_media_type")


async def test_a_prompt_that_just_fits_is_served_and_one_more_token_is_not() -> None:
    async with open_world(n_ctx=64) as world:
        assert (await world.complete("x" * 63).end()).json()["choices"][0]["finish_reason"] == "length"
        refused = await world.complete("x" * 64).end()
        message = assert_refused(refused, "prompt", "context_length_exceeded")
        assert "64" in message
        assert "63" in message
        error = refused.json()["error"]
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (64, 64)


async def test_one_requests_bad_logits_fail_it_alone(world: World) -> None:
    neighbour = await world.running_stream("neighbour", max_tokens=3)
    world.context.faults[tuple(b"poison")] = LogitFault.NOT_FINITE
    poison = await world.submitted("poison", "poison")
    world.gate.open()
    await poison.end()
    assert poison.status == 500
    assert "not finite" in poison.json()["error"]["message"]
    await neighbour.end()
    assert neighbour.events[-1] == "[DONE]"
    assert not any("error" in json.loads(event) for event in neighbour.events[:-1])


async def test_a_deadline_of_the_far_future_does_not_stop_the_deadlines_of_others() -> None:
    async with open_world(parallel=1, request_timeout=1e300) as world:
        await world.running_stream("far")
        late = await world.complete(timeout=0.001).end()
        assert late.status == 504
