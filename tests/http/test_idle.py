"""`priority: idle`, by field, header and owner; and `prefetch`, which computes a prompt ahead."""

from __future__ import annotations

from typing import Any

import pytest

from pyllmcancel.server.config import ApiKey
from tests.support.http_world import World, open_world

OWNERS = (ApiKey("batch", "key-b"), ApiKey("chat", "key-c"))
LONG = "a prompt that is long enough to be kept"


@pytest.mark.parametrize(
    ("fields", "headers", "priority"),
    [
        ({"priority": "idle"}, {}, "idle"),
        ({}, {"x-priority": "idle"}, "idle"),
        ({"priority": 3}, {"x-priority": "idle"}, "idle"),
        ({"priority": "idle"}, {"x-priority": "-2"}, -2),
        ({}, {"x-priority": "7"}, 7),
        ({}, {"authorization": "Bearer key-b"}, "idle"),
        ({"priority": 0}, {"authorization": "Bearer key-b"}, 0),
        ({"prefetch": True}, {}, "idle"),
    ],
)
async def test_the_header_the_field_and_the_owner_say_what_is_idle(
    fields: dict[str, Any], headers: dict[str, str], priority: Any
) -> None:
    async with open_world(api_keys=OWNERS, idle_owners=("batch",)) as world:
        headers = {"authorization": "Bearer key-c"} | headers
        exchange = world.complete(max_tokens=1, headers=headers | {"x-request-id": "r"}, **fields)
        await exchange.end()
        assert exchange.status == 200
        listed = await world.get("/v1/requests/r", headers={"authorization": headers["authorization"]})
        assert listed.json()["priority"] == priority


@pytest.mark.parametrize("body", [{"priority": "idle"}, {"prefetch": True}])
async def test_an_idle_request_gives_way_to_an_arrival(world: World, body: dict[str, Any]) -> None:
    world.hold()
    idle = world.complete(LONG, max_tokens=4, headers={"x-request-id": "idle"}, **body)
    await world.held()
    other = world.complete("another", max_tokens=1, headers={"x-request-id": "other"})
    await world.added("other")
    held = await world.held()
    assert [item.n_tokens for item in held.items] == [len("another")]
    assert (await world.request("idle"))["paused"]
    world.gate.open()
    await other.end()
    await idle.end()
    assert (other.status, idle.status) == (200, 200)


async def test_a_prefetched_prompt_is_kept_for_the_request_that_follows(world: World) -> None:
    first = await world.served("/v1/completions", {"prompt": LONG, "prefetch": True, "max_tokens": 5, "n": 2})
    assert first.json()["usage"]["completion_tokens"] == 0
    then = await world.served("/v1/completions", {"prompt": LONG + "er", "max_tokens": 1})
    assert then.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == len(LONG)
