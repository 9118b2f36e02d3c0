"""Tools whose schemas no grammar follows are served, and named as each API names them; strict ones are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.http_world import World

TREE = {"type": "object", "properties": {"label": {"type": "string"}, "kids": {"items": {"$ref": "#"}}}}
LACKING = {"type": "object", "properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"not": {}}}}
HELLO = [{"role": "user", "content": "hi"}]


def body_of(path: str, schema: Any, **fields: Any) -> dict[str, Any]:
    if path.startswith("/v1/messages"):
        most = {} if path.endswith("count_tokens") else {"max_tokens": 1}
        return {"messages": HELLO, "tools": [{"name": "t", "input_schema": schema, **fields}], **most}
    if path == "/v1/responses":
        tool = {"type": "function", "name": "t", "parameters": schema, **fields}
        return {"input": "hi", "tools": [{"type": "web_search"}, tool], "max_output_tokens": 1}
    return {
        "messages": HELLO,
        "tools": [{"type": "function", "function": {"name": "t", "parameters": schema, **fields}}],
        "max_tokens": 1,
    }


PLACES = {
    "/v1/chat/completions": "tools[0].function.parameters",
    "/v1/messages": "tools[0].input_schema",
    "/v1/responses": "tools[1].parameters",
}


@pytest.mark.parametrize("path", [*PLACES, "/v1/messages/count_tokens"])
@pytest.mark.parametrize("schema", [True, TREE, {"type": "object", "properties": {"extra": True}}], ids=str)
async def test_what_a_grammar_follows_is_served(world: World, path: str, schema: Any) -> None:
    exchange = await world.post(path, body_of(path, schema))
    assert (exchange.status, exchange.headers.get("x-unenforced")) == (200, None), exchange.body


@pytest.mark.parametrize(("path", "place"), PLACES.items())
async def test_what_none_follows_is_named_as_the_api_does(world: World, path: str, place: str) -> None:
    exchange = await world.post(path, body_of(path, LACKING))
    assert (exchange.status, exchange.headers.get("x-unenforced")) == (200, f"{place}.$defs.y.not")


@pytest.mark.parametrize(("path", "place"), PLACES.items())
async def test_a_strict_schema_is_refused_where_the_api_has_it(world: World, path: str, place: str) -> None:
    assert (await world.post(path, body_of(path, LACKING, strict=True))).refusal == (400, place)


async def test_tokens_are_counted_whatever_the_schema_is(world: World) -> None:
    path = "/v1/messages/count_tokens"
    assert (await world.post(path, body_of(path, LACKING, strict=True))).status == 200


async def test_parameters_that_are_no_schema_are_named(world: World) -> None:
    path = "/v1/chat/completions"
    exchange = await world.post(path, body_of(path, "a text"))
    assert exchange.status == 400
    assert "tools.0.function.parameters" in exchange.json()["error"]["message"]
