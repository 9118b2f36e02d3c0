"""``--api-key``: what needs one, and that nothing else of a request is looked at before."""

from __future__ import annotations

import pytest

from tests.support.http_world import COMPLETIONS, open_world, unnamed


@pytest.mark.parametrize("form", ["Bearer {}", "bearer {}", "Bearer  {} ", ""])
@pytest.mark.parametrize("key", ["first", "second", "schlüssel", "voilà", "à"])
async def test_each_of_the_keys_opens_in_either_header_as_it_was_typed(key: str, form: str) -> None:
    """The last byte of an à is a blank in Latin-1, but none of the header's."""
    async with open_world(api_keys=unnamed("first", "second", "schlüssel", "voilà", "à")) as world:
        # Headers are bytes; a client sends what was typed as UTF-8.
        sent = key.encode().decode("latin-1")
        headers = {"authorization": form.format(sent)} if form else {"x-api-key": sent}
        assert (await world.get("/v1/models", headers=headers)).status == 200
        assert (await world.get("/v1/models", headers={"x-api-key": sent + "x"})).status == 401


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic first", "first"])
async def test_anything_else_is_401(authorization: str | None) -> None:
    async with open_world(api_keys=unnamed("first")) as world:
        headers = {} if authorization is None else {"authorization": authorization}
        exchange = await world.complete(headers=headers | {"x-request-id": "mine"}).end()
        assert exchange.status == 401
        assert exchange.headers["x-should-retry"] == "false"
        assert exchange.headers["x-request-id"] == "mine"
        assert exchange.headers["www-authenticate"] == "Bearer"
        error = exchange.json()["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
        assert error["request_id"] == "mine"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/v1/health", 200),
        ("GET", "/metrics", 401),
        ("GET", "/v1/models", 401),
        ("GET", "/v1/requests", 401),
        ("GET", "/v1/steps", 401),
        ("POST", "/v1/requests/x/cancel", 401),
        ("POST", "/v1/sessions/x/cancel", 401),
        ("POST", COMPLETIONS, 401),
        ("GET", "/nowhere", 401),
    ],
)
async def test_what_is_open_without_a_key(method: str, path: str, status: int) -> None:
    async with open_world(api_keys=unnamed("first")) as world:
        assert (await world.begin(method, path).end()).status == status
