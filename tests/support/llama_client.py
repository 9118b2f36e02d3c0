"""Clients of llama-server's ``/completion``, for tests."""

import json
from typing import Any

from tests.support.http_asgi import Exchange
from tests.support.http_world import World

COMPLETION = "/completion"


async def answer(world: World, prompt: Any = "hello", path: str = COMPLETION, **fields: Any) -> Any:
    exchange = await world.post(path, {"prompt": prompt} | fields)
    assert exchange.status == 200, exchange.body
    return exchange.json()


async def events(world: World, prompt: Any = "hello", **fields: Any) -> list[dict[str, Any]]:
    return parsed(await world.post(COMPLETION, {"prompt": prompt, "stream": True} | fields))


def parsed(exchange: Exchange) -> list[dict[str, Any]]:
    assert exchange.status == 200, exchange.body
    return [json.loads(event) for event in exchange.events]
