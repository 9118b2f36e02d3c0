"""llama-server's endpoints are cancelled as all others are; a cancelled answer never looks complete there either."""

import json
from typing import Any

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_world import World

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
    (await decoding(world, path, MINE, stream=stream)).leave()
    await world.cancelling("mine")
    world.gate.open()
    seen = await world.ended("mine")
    assert (seen["status"], seen["cancel_reason"], seen["phase"]) == ("cancelled", "disconnect", "decode")


@pytest.mark.parametrize(
    ("reason", "status", "kind"),
    [
        ("superseded", 499, "invalid_request_error"),
        ("explicit", 499, "invalid_request_error"),
        ("deadline", 504, "unavailable_error"),
    ],
)
async def test_a_cut_answer_says_why(  # noqa: PLR0917
    world: World, path: str, stream: bool, reason: str, status: int, kind: str
) -> None:
    exchange = await decoding(world, path, MINE | {"x-supersede": "key"}, stream=stream)
    await world.bring_about(reason)
    await world.cancelling("mine")
    world.gate.open()
    assert_cut(await exchange.end(), stream, status, reason, kind)
