"""llama-server's endpoints are cancelled as all others are; a cancelled answer never looks complete there either."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_world import World, open_world

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"]),
    pytest.mark.parametrize("path", ["/completion", "/infill"]),
]

MINE = {"x-request-id": "mine"}
BODIES = {"/completion": {"prompt": "hello"}, "/infill": {"input_prefix": "he", "input_suffix": "lo"}}
SPECIAL = {"eos": 256, "fim_pre": 1, "fim_suf": 2, "fim_mid": 3}


def ask(world: World, path: str, headers: dict[str, str], **fields: Any) -> Exchange:
    world.model.special_tokens = SPECIAL
    options = {"n_predict": 8, "ignore_eos": True, "temperature": 0}
    return world.begin("POST", path, BODIES[path] | options | fields, headers=headers)


async def decoding(world: World, path: str, headers: dict[str, str], **fields: Any) -> Exchange:
    """A request that has a token, and whose next step is held."""
    world.hold()
    exchange = ask(world, path, headers, **fields)
    await world.step(2)
    await world.held()
    return exchange


def assert_cut(exchange: Exchange, stream: bool, status: int, reason: str, kind: str) -> None:
    """An error, with what had been done, and nothing that says that the answer is whole."""
    if not stream:
        assert exchange.status == status
        body = exchange.json()
    else:
        assert exchange.status == 200
        found = [json.loads(event) for event in exchange.events]
        assert all(event["stop"] is False for event in found[:-1])
        body = found[-1]
    assert (body["error"]["code"], body["error"]["reason"], body["error"]["type"]) == (status, reason, kind)
    assert body["usage"]["completion_tokens"] >= 0
    assert "stop" not in body


async def test_leaving_cancels(world: World, path: str, stream: bool) -> None:
    exchange = await decoding(world, path, MINE, stream=stream)
    exchange.leave()
    await world.cancelling("mine")
    world.gate.open()
    seen = await world.ended("mine")
    assert (seen["status"], seen["cancel_reason"], seen["phase"]) == ("cancelled", "disconnect", "decode")


async def test_leaving_the_queue_cancels(path: str, stream: bool) -> None:
    async with open_world(parallel=1) as world:
        await world.running_stream("neighbour")
        exchange = ask(world, path, MINE, stream=stream)
        await world.added("mine")
        exchange.leave()
        seen = await world.ended("mine")
        assert (seen["status"], seen["phase"]) == ("cancelled", "waiting")


async def test_a_newer_request_of_the_key_supersedes(world: World, path: str, stream: bool) -> None:
    key = {"x-supersede": "editor"}
    old = await decoding(world, path, MINE | key, stream=stream)
    new = ask(world, path, key)
    await world.cancelling("mine")
    world.gate.open()
    assert_cut(await old.end(), stream, 499, "superseded", "invalid_request_error")
    assert (await new.end()).json()["tokens_predicted"] == 8


async def test_a_key_can_be_named_in_the_body(world: World, path: str, stream: bool) -> None:
    old = await decoding(world, path, MINE, stream=stream, supersede="editor")
    ask(world, path, {}, supersede="editor")
    await world.cancelling("mine")
    world.gate.open()
    assert_cut(await old.end(), stream, 499, "superseded", "invalid_request_error")


async def test_the_cancel_endpoint_answers_when_the_computation_has_stopped(
    world: World, path: str, stream: bool
) -> None:
    exchange = await decoding(world, path, MINE, stream=stream)
    cancel = world.begin("POST", "/v1/requests/mine/cancel")
    await world.cancelling("mine")
    world.gate.open()
    said = (await cancel.end()).json()
    assert (said["outcome"], said["reason"], said["phase"]) == ("cancelled", "explicit", "decode")
    assert_cut(await exchange.end(), stream, 499, "explicit", "invalid_request_error")


async def test_a_deadline_cuts(world: World, path: str, stream: bool) -> None:
    exchange = await decoding(world, path, MINE, stream=stream)
    world.expire("mine")
    await world.cancelling("mine")
    world.gate.open()
    assert_cut(await exchange.end(), stream, 504, "deadline", "unavailable_error")
