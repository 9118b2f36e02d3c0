"""A search for tools that the client of /v1/responses runs, as Codex has one: the model calls it as a function."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai.types.responses import Response

from tests.support.chat_models import Says
from tests.support.http_world import World, accepted, open_world
from tests.support.responses import RESPONSES, checked, checked_events

SEARCH = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": {"type": "object"}}
FOUND = {"type": "function", "name": "send_mail", "parameters": {"type": "object"}, "defer_loading": True}
CALL = '<tool_call>\n{"name": "tool_search", "arguments": {"query": "mail", "limit": 2}}\n</tool_call>'
ARGUMENTS = {"query": "mail", "limit": 2}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(model=Says(CALL), n_ctx=4096) as opened:
        yield opened


def body(*items: Any, **fields: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": "Send a mail."}
    return {"input": [asked, *items], "tools": [SEARCH], "max_output_tokens": 200, "temperature": 0} | fields


def check(found: dict[str, Any]) -> dict[str, Any]:
    Response.model_validate(found)
    (item,) = found["output"]
    assert item["id"].startswith("tsc_")
    expected = {"type": "tool_search_call", "status": "completed", "execution": "client", "arguments": ARGUMENTS}
    assert {name: item[name] for name in expected} == expected
    return dict(item)


async def test_the_models_search_is_an_item_of_its_own(world: World) -> None:
    made = accepted(world)
    exchange = await world.post(RESPONSES, body())
    check(checked(exchange.json()))
    assert "x-ignored-fields" not in exchange.headers
    assert '"description": "Find tools."' in bytes(made[-1].choices[0].prompt).decode()


async def test_a_stream_has_it_whole_when_it_is_complete(world: World) -> None:
    events = checked_events(await world.post(RESPONSES, body(stream=True)))
    item = check(events[-1]["response"])
    added, done = (
        [event["item"] for event in events if event["type"] == f"response.output_item.{kind}"]
        for kind in ("added", "done")
    )
    assert added == [item | {"status": "in_progress", "arguments": {}}]
    assert done == [item]


@pytest.mark.parametrize("is_stored", [False, True])
async def test_what_the_client_has_found_can_be_called_in_the_next_turn(world: World, is_stored: bool) -> None:
    first = (await world.post(RESPONSES, body())).json()
    call = first["output"][0]
    found = {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": [FOUND]}
    made = accepted(world)
    if is_stored:
        asked = body(tools=[SEARCH, FOUND]) | {"input": [found], "previous_response_id": first["id"]}
    else:
        asked = body(call, found, tools=[SEARCH, FOUND])
    assert (await world.post(RESPONSES, asked)).status == 200
    prompt = bytes(made[-1].choices[0].prompt).decode()
    assert '"name": "send_mail"' in prompt
    assert '{"name": "tool_search", "arguments": ' in prompt
    assert "<|t|>[tool_search returned]\nsend_mail<|e|>" in prompt


async def shown(world: World, *tools: Any) -> str:
    made = accepted(world)
    assert (await world.post(RESPONSES, body(tools=list(tools)))).status == 200
    return bytes(made[-1].choices[0].prompt).decode()


async def test_deferred_tools_are_shown_only_if_nothing_could_find_them() -> None:
    space = {"type": "namespace", "name": "post", "tools": [FOUND, {"type": "function", "name": "read"}]}
    async with open_world(model=Says("Hm."), n_ctx=4096) as world:
        assert '"name": "send_mail"' in await shown(world, FOUND)
        assert '"name": "send_mail"' in await shown(world, FOUND, {"type": "tool_search"})
        prompt = await shown(world, FOUND, space, SEARCH)
        assert "send_mail" not in prompt
        assert '"name": "post__read"' in prompt


async def test_it_may_be_chosen_and_a_hosted_one_may_not(world: World) -> None:
    chosen = await world.post(RESPONSES, body(tool_choice={"type": "tool_search"}))
    assert chosen.json()["output"][0]["type"] == "tool_search_call"
    assert (
        await world.post(RESPONSES, body(tool_choice={"type": "tool_search"}, tools=[{"type": "tool_search"}]))
    ).refusal == (400, "tool_choice")


async def test_a_call_that_was_cut_is_incomplete_and_left_out_of_the_next_turn(world: World) -> None:
    found = checked((await world.post(RESPONSES, body(max_output_tokens=60))).json())
    (item,) = found["output"]
    assert (found["status"], item["type"], item["status"]) == ("incomplete", "tool_search_call", "incomplete")
    assert item["arguments"] == {}
    made = accepted(world)
    assert (await world.post(RESPONSES, body(item))).status == 200
    assert '"name": "tool_search", "arguments": ' not in bytes(made[-1].choices[0].prompt).decode()


@pytest.mark.parametrize("fault", [{"parameters": "x"}, {"description": 3}], ids=str)
async def test_a_search_with_a_fault_is_refused_by_its_place(fault: dict[str, Any]) -> None:
    async with open_world(n_ctx=4096) as world:
        exchange = await world.post(RESPONSES, body(tools=[SEARCH | fault]))
        assert exchange.status == 400
        assert exchange.json()["error"]["param"].startswith("tools")
