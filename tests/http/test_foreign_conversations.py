"""Conversations that began on Anthropic's or OpenAI's servers go on here: with hosted tools, and what these did."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyllmcancel.requests.request import Request
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, accepted, open_world

USER = {"role": "user", "content": "hello"}
FIND = {"name": "Find", "input_schema": {"type": "object"}}
READ = {"name": "Read", "defer_loading": True, "input_schema": {"type": "object"}}
HOSTED = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
FOUND = {"type": "tool_reference", "tool_name": "Read"}
CALL = {"type": "tool_use", "id": "abcdefghi", "name": "Find", "input": {}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(n_ctx=4096) as opened:
        yield opened


def result(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "abcdefghi", "content": list(parts)}]}


async def message(world: World, *messages: dict[str, Any], **fields: Any) -> Exchange:
    return await world.served("/v1/messages", {"messages": list(messages), "max_tokens": 1} | fields)


def prompt_of(made: list[Request]) -> str:
    return bytes(made[-1].choices[0].prompt).decode()


def ignored(exchange: Exchange) -> str:
    return exchange.headers.get("x-ignored-fields", "")


@pytest.mark.parametrize(
    ("tools", "is_shown"),
    [([FIND, READ], True), ([READ], True), ([FIND], False)],
)
async def test_a_tool_that_a_search_found_is_shown(world: World, tools: list[dict[str, Any]], is_shown: bool) -> None:
    made = accepted(world)
    asked = (USER, {"role": "assistant", "content": [CALL]}, result(FOUND))
    exchange = await message(world, *asked, tools=tools)
    prompt = prompt_of(made)
    assert "Tool found: Read" in prompt
    assert ('"name": "Read"' in prompt) is is_shown
    assert ignored(exchange) == ""


async def test_a_tool_that_nothing_has_named_is_not_shown(world: World) -> None:
    made = accepted(world)
    exchange = await message(world, USER, tools=[FIND, READ])
    prompt = prompt_of(made)
    assert '"name": "Find"' in prompt
    assert "Read" not in prompt
    counted = (await world.post("/v1/messages/count_tokens", {"messages": [USER], "tools": [FIND]})).json()
    assert counted["input_tokens"] == exchange.json()["usage"]["input_tokens"]


async def test_hosted_tools_are_ignored_beside_ones_own(world: World) -> None:
    made = accepted(world)
    exchange = await message(world, USER, tools=[HOSTED, FIND, {"type": "bash_20250124", "name": "bash"}])
    assert ignored(exchange) == "tools[0], tools[2]"
    prompt = prompt_of(made)
    assert '"name": "Find"' in prompt
    assert "web_search" not in prompt


async def test_a_chat_of_hosted_tools_alone_goes_on_without_tools(world: World) -> None:
    alone = await message(world, USER, tools=[HOSTED], tool_choice={"type": "auto"})
    without = await message(world, USER)
    assert alone.json()["usage"]["output_tokens"] == 1
    tokens = [
        sum(one.json()["usage"][f"{kind}input_tokens"] for kind in ("", "cache_read_")) for one in (alone, without)
    ]
    assert tokens[0] == tokens[1]


async def test_mcp_servers_and_containers_are_ignored_and_reported(world: World) -> None:
    servers = [{"type": "url", "name": "x", "url": "https://x"}]
    exchange = await message(world, USER, mcp_servers=servers, container="c")
    assert sorted(ignored(exchange).split(", ")) == ["container", "mcp_servers"]


async def test_a_fault_in_a_tool_is_told_of_the_tool_that_the_client_has_sent(world: World) -> None:
    body = {"messages": [USER], "max_tokens": 1, "tools": [HOSTED, READ, FIND, FIND]}
    assert (await world.post("/v1/messages", body)).json()["error"]["param"] == "tools[3].name"


async def test_what_hosted_tools_did_is_text_and_what_cannot_be_read_is_reported(world: World) -> None:
    history = [
        {"type": "text", "text": "I look."},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "weather"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [{"type": "web_search_result", "title": "Sun", "url": "https://sun", "encrypted_content": "eJ"}],
        },
        {"type": "container_upload", "file_id": "f"},
        {"type": "text", "text": "Sunny."},
    ]
    made = accepted(world)
    exchange = await message(world, USER, {"role": "assistant", "content": history}, USER)
    said = 'I look.\n[web_search called with {"query": "weather"}]\n\n[web_search returned]\nSun\nhttps://sun\nSunny.'
    assert said in prompt_of(made)
    assert ignored(exchange) == "messages.content.container_upload"


async def test_such_fields_are_refused_where_the_server_refuses_them() -> None:
    async with open_world(unknown_fields="refuse") as world:
        body = {"messages": [USER], "max_tokens": 1, "tools": [HOSTED]}
        assert (await world.post("/v1/messages", body)).refusal == (400, "tools[0]")


async def test_the_items_of_a_response_that_hosted_tools_made(world: World) -> None:
    items: list[dict[str, Any]] = [
        USER,
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Sunny."}]},
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a.py", "stderr": "", "outcome": {}}]},
        {"type": "image_generation_call", "id": "i", "status": "completed", "result": "iVBORw0KGgo="},
        USER,
    ]
    made = accepted(world)
    exchange = await world.served("/v1/responses", {"input": items, "max_output_tokens": 1})
    assert ignored(exchange) == "input.image_generation_call"
    prompt = prompt_of(made)
    assert '[web_search called with {"type": "search", "query": "q"}]\nSunny.' in prompt
    assert "user\n[shell returned]\na.py" in prompt
    assert "iVBOR" not in prompt
    kept = await world.begin("GET", f"/v1/responses/{exchange.json()['id']}/input_items?order=asc").end()
    assert [item["type"] for item in kept.json()["data"]] == ["message"] + [
        item.get("type", "message") for item in items[1:]
    ]
    assert kept.json()["data"][1] == items[1]
    again = {"input": "go", "previous_response_id": exchange.json()["id"], "max_output_tokens": 1}
    assert (await world.post("/v1/responses", again)).status == 200


async def test_tools_that_a_search_has_found_can_be_called_in_a_response(world: World) -> None:
    loaded = {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function", "name": "found"}]}
    made = accepted(world)
    body = {"input": [USER, loaded, USER], "max_output_tokens": 1, "tools": [{"type": "function", "name": "found"}]}
    await world.post("/v1/responses", body)
    beside = prompt_of(made)
    await world.post("/v1/responses", {**body, "tools": []})
    assert prompt_of(made) == beside
    assert '"name": "found"' in beside
