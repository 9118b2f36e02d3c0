"""Conversations that began on Anthropic's or OpenAI's servers go on here: with hosted tools, what these did, and a
search for tools that the client runs, as Codex has one.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.responses import Response

from pyllmcancel.requests.request import Request
from tests.support.chat_models import Says
from tests.support.http_asgi import Exchange
from tests.support.http_world import World, accepted, open_world
from tests.support.responses import RESPONSES, checked, checked_events

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
    hosts = {"mcp_servers": [{"type": "url", "name": "x", "url": "https://x"}], "container": "c"}
    exchange = await message(world, USER, tools=[HOSTED, FIND, {"type": "bash_20250124", "name": "bash"}], **hosts)
    assert sorted(ignored(exchange).split(", ")) == ["container", "mcp_servers", "tools[0]", "tools[2]"]
    prompt = prompt_of(made)
    assert '"name": "Find"' in prompt
    assert "web_search" not in prompt


async def test_a_chat_of_hosted_tools_alone_goes_on_without_tools(world: World) -> None:
    alone = await message(world, USER, tools=[HOSTED], tool_choice={"type": "auto"})
    without = await message(world, USER)
    assert alone.json()["usage"]["output_tokens"] == 1
    sent, again = (one.json()["usage"] for one in (alone, without))
    assert sent["input_tokens"] == again["input_tokens"] + again["cache_read_input_tokens"]


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
    assert [item["type"] for item in kept.json()["data"]] == [item.get("type", "message") for item in items]
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


# -- a search for tools that the client of /v1/responses runs: the model calls it as a function ------------------------


CLIENT_SEARCH = {
    "type": "tool_search",
    "execution": "client",
    "description": "Find tools.",
    "parameters": {"type": "object"},
}
SEND_MAIL = {"type": "function", "name": "send_mail", "parameters": {"type": "object"}, "defer_loading": True}
SEARCHED = '<tool_call>\n{"name": "tool_search", "arguments": {"query": "mail", "limit": 2}}\n</tool_call>'
SOUGHT = {"query": "mail", "limit": 2}


@pytest.fixture
async def searching() -> AsyncIterator[World]:
    async with open_world(model=Says(SEARCHED), n_ctx=4096) as opened:
        yield opened


def body(*items: Any, **fields: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": "Send a mail."}
    return {"input": [asked, *items], "tools": [CLIENT_SEARCH], "max_output_tokens": 200, "temperature": 0} | fields


def check(found: dict[str, Any]) -> dict[str, Any]:
    Response.model_validate(found)
    (item,) = found["output"]
    assert item["id"].startswith("tsc_")
    expected = {"type": "tool_search_call", "status": "completed", "execution": "client", "arguments": SOUGHT}
    assert {name: item[name] for name in expected} == expected
    return dict(item)


async def test_the_models_search_is_an_item_of_its_own(searching: World) -> None:
    made = accepted(searching)
    exchange = await searching.post(RESPONSES, body())
    check(checked(exchange.json()))
    assert "x-ignored-fields" not in exchange.headers
    assert '"description": "Find tools."' in prompt_of(made)


async def test_a_stream_has_it_whole_when_it_is_complete(searching: World) -> None:
    events = checked_events(await searching.post(RESPONSES, body(stream=True)))
    item = check(events[-1]["response"])
    added, done = (
        [event["item"] for event in events if event["type"] == f"response.output_item.{kind}"]
        for kind in ("added", "done")
    )
    assert added == [item | {"status": "in_progress", "arguments": {}}]
    assert done == [item]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_what_the_client_has_found_can_be_called_in_the_next_turn(searching: World, is_stored: bool) -> None:
    first = (await searching.post(RESPONSES, body())).json()
    call = first["output"][0]
    found = {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": [SEND_MAIL]}
    made = accepted(searching)
    if is_stored:
        asked = body(tools=[CLIENT_SEARCH, SEND_MAIL]) | {"input": [found], "previous_response_id": first["id"]}
    else:
        asked = body(call, found, tools=[CLIENT_SEARCH, SEND_MAIL])
    assert (await searching.post(RESPONSES, asked)).status == 200
    prompt = prompt_of(made)
    assert '"name": "send_mail"' in prompt
    assert '{"name": "tool_search", "arguments": ' in prompt
    assert "<|t|>[tool_search returned]\nsend_mail<|e|>" in prompt


async def shown(searching: World, *tools: Any) -> str:
    made = accepted(searching)
    assert (await searching.post(RESPONSES, body(tools=list(tools)))).status == 200
    return prompt_of(made)


async def test_deferred_tools_are_shown_only_if_nothing_could_find_them() -> None:
    space = {"type": "namespace", "name": "post", "tools": [SEND_MAIL, {"type": "function", "name": "read"}]}
    async with open_world(model=Says("Hm."), n_ctx=4096) as searching:
        assert '"name": "send_mail"' in await shown(searching, SEND_MAIL)
        assert '"name": "send_mail"' in await shown(searching, SEND_MAIL, {"type": "tool_search"})
        prompt = await shown(searching, SEND_MAIL, space, CLIENT_SEARCH)
        assert "send_mail" not in prompt
        assert '"name": "post__read"' in prompt


async def test_it_may_be_chosen_and_a_hosted_one_may_not(searching: World) -> None:
    chosen = await searching.post(RESPONSES, body(tool_choice={"type": "tool_search"}))
    assert chosen.json()["output"][0]["type"] == "tool_search_call"
    assert (
        await searching.post(RESPONSES, body(tool_choice={"type": "tool_search"}, tools=[{"type": "tool_search"}]))
    ).refusal == (400, "tool_choice")


async def test_a_call_that_was_cut_is_incomplete_and_left_out_of_the_next_turn(searching: World) -> None:
    found = checked((await searching.post(RESPONSES, body(max_output_tokens=60))).json())
    (item,) = found["output"]
    assert (found["status"], item["type"], item["status"]) == ("incomplete", "tool_search_call", "incomplete")
    assert item["arguments"] == {}
    made = accepted(searching)
    assert (await searching.post(RESPONSES, body(item))).status == 200
    assert '"name": "tool_search", "arguments": ' not in prompt_of(made)


@pytest.mark.parametrize("fault", [{"parameters": "x"}, {"description": 3}], ids=str)
async def test_a_search_with_a_fault_is_refused_by_its_place(fault: dict[str, Any]) -> None:
    async with open_world(n_ctx=4096) as searching:
        exchange = await searching.post(RESPONSES, body(tools=[CLIENT_SEARCH | fault]))
        assert exchange.status == 400
        assert exchange.json()["error"]["param"].startswith("tools")
