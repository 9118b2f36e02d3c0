"""``--cors-origins``: which web pages may use the server."""

from __future__ import annotations

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_world import COMPLETIONS, World, open_world, unnamed

PAGE = "https://page.example"


async def preflight(world: World, origin: str) -> Exchange:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-session-id",
    }
    return await world.begin("OPTIONS", COMPLETIONS, headers=headers).end()


async def test_by_default_no_page_is_allowed(world: World) -> None:
    assert (await preflight(world, PAGE)).status == 405
    exchange = await world.get("/health", headers={"origin": PAGE})
    assert not [name for name in exchange.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("allowed", [("*",), (PAGE,), ("https://other.example", PAGE)])
async def test_a_preflight_passes_without_a_key_and_allows_what_was_asked_for(allowed: tuple[str, ...]) -> None:
    async with open_world(cors_origins=allowed, api_keys=unnamed("key")) as world:
        exchange = await preflight(world, PAGE)
        assert exchange.status == 200
        assert exchange.headers["access-control-allow-origin"] == ("*" if allowed == ("*",) else PAGE)
        assert "x-session-id" in exchange.headers["access-control-allow-headers"]
        assert "x-request-id" in exchange.headers


async def test_a_page_can_read_the_id_of_answers_and_why_it_was_refused() -> None:
    async with open_world(cors_origins=(PAGE,), api_keys=unnamed("key")) as world:
        exchange = await world.complete(headers={"origin": PAGE}).end()
        assert exchange.status == 401
        assert exchange.headers["access-control-allow-origin"] == PAGE
        assert "X-Request-Id" in exchange.headers["access-control-expose-headers"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_that_is_closed_is_a_client_that_leaves(stream: bool) -> None:
    async with open_world(cors_origins=("*",)) as world:
        exchange = await world.computing(stream=stream, headers={"origin": PAGE, "x-request-id": "mine"})
        await exchange.left()
        assert (await world.ended("mine"))["cancel_reason"] == "disconnect"
