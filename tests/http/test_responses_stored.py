"""Responses that are asked for after they were created: in the store, and in the background."""

import asyncio
import sqlite3
from typing import Any

import pytest
from openai.types.responses import ResponseItemList
from pydantic import TypeAdapter

from pyllmcancel.server.responses.storage.rows import ENDED_WITH_SERVER, LOST
from tests.http.test_openapi import check_exchange
from tests.support.chat_models import CALL, PARIS, Says
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import World, open_world, unnamed
from tests.support.responses import RESPONSES, accumulated, checked, checked_events


async def create(world: World, name: str = "mine", status: int = 200, **fields: Any) -> dict[str, Any]:
    headers = {"x-request-id": name} | fields.pop("headers", {})
    exchange = await world.post(RESPONSES, {"input": "hello", "max_output_tokens": 30} | fields, headers=headers)
    assert exchange.status == status, exchange.body
    found: dict[str, Any] = exchange.json()
    return checked(found) if status == 200 else found["error"]


async def get(world: World, path: str = "resp_mine", status: int = 200, **options: Any) -> dict[str, Any]:
    exchange = await world.get(f"{RESPONSES}/{path}", **options)
    assert exchange.status == status, exchange.body
    found: dict[str, Any] = exchange.json()
    return found if status == 200 else found["error"]


async def cancel(world: World, name: str = "resp_mine", **options: Any) -> Exchange:
    return await world.post(f"{RESPONSES}/{name}/cancel", **options)


async def until_ended(world: World, name: str = "mine", owner: str = "") -> dict[str, Any]:
    background = world.app.state.responses.find(owner, f"resp_{name}")
    if background is not None:
        async with asyncio.timeout(LIMIT):
            await background.written()
    return checked(await get(world, f"resp_{name}"))


async def in_background(world: World, name: str = "mine", **fields: Any) -> dict[str, Any]:
    """One whose first step is held."""
    world.hold()
    found = await create(world, name, background=True, temperature=0, ignore_eos=True, **fields)
    await world.held()
    return found


# -- kept -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [False, True])
async def test_a_response_is_there_afterwards_as_it_was_given(streams: bool) -> None:
    async with open_world(model=Says("It is 4.")) as world:
        body = {"input": "hello", "stream": streams}
        exchange = await world.post(RESPONSES, body, headers={"x-request-id": "mine"})
        found = checked_events(exchange)[-1]["response"] if streams else checked(exchange.json())
        assert found["store"]
        assert await get(world) == found


async def test_a_cancelled_stream_is_kept_as_cancelled(world: World) -> None:
    world.hold()
    body = {"input": "hello", "stream": True, "temperature": 0, "ignore_eos": True}
    asked = world.begin("POST", RESPONSES, body, headers={"x-request-id": "mine"})
    await world.step(3)
    await world.held()
    await get(world, status=404)
    asked.leave()
    await world.cancelling("mine")
    world.gate.open()
    await asked.end()
    found = checked(await get(world))
    assert (found["status"], found["completed_at"]) == ("cancelled", None)
    assert [item["status"] for item in found["output"]] == ["incomplete"]
    assert found["usage"]["output_tokens"] > 0


async def test_an_id_is_not_used_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await create(world)
    for background in (False, True):
        assert (await create(world, status=400, background=background))["param"] == "X-Request-Id"

    async def is_not_there_yet(*_names: str) -> bool:
        return False

    # The other one comes between the look and the storing.
    desk = world.app.state.responses
    monkeypatch.setattr(desk, "exists", is_not_there_yet)
    assert (await create(world, status=400, background=True))["param"] == "X-Request-Id"
    await asyncio.gather(*desk._live._tasks)
    assert await get(world) == first


async def test_owners_do_not_meet() -> None:
    async with open_world(api_keys=unnamed("ann", "bob")) as world:
        ann, bob = ({"authorization": f"Bearer {key}"} for key in ("ann", "bob"))
        await create(world, headers=ann)
        assert (await get(world, headers=ann))["id"] == "resp_mine"
        for path in ("resp_mine", "resp_mine/input_items", "resp_mine?stream=true"):
            await get(world, path, 404, headers=bob)
        assert (await cancel(world, headers=bob)).status == 404
        assert (await world.begin("DELETE", f"{RESPONSES}/resp_mine", headers=bob).end()).status == 404
        error = await create(world, "other", 404, previous_response_id="resp_mine", headers=bob)
        assert error["param"] == "previous_response_id"
        assert (await create(world, headers=bob))["id"] == "resp_mine"


async def test_what_is_not_to_be_stored_is_not_and_does_not_run_in_the_background() -> None:
    for server, fields in (({"storage": None}, {}), ({}, {"store": False})):
        async with open_world(**server) as world:
            assert (await create(world, status=400, background=True, **fields))["param"] == "background"
            assert await world.requests() == []
            assert not (await create(world, **fields))["store"]
            assert (await get(world, status=404))["message"] == "Response with id 'resp_mine' not found."
            error = await create(world, status=404, previous_response_id="resp_mine")
            assert error["param"] == "previous_response_id"
            assert (await cancel(world)).status == 404


async def test_what_is_shown_of_a_response_is_as_described() -> None:
    async with open_world(model=Says("It is 4.")) as world:
        await create(world, background=True)
        await until_ended(world)
        one, path = f"{RESPONSES}/{{response_id}}", f"{RESPONSES}/resp_mine"
        check_exchange(one, "get", await world.get(path))
        check_exchange(one, "get", await world.get(f"{path}?stream=true"))
        check_exchange(f"{one}/input_items", "get", await world.get(f"{path}/input_items"))
        check_exchange(f"{one}/cancel", "post", await cancel(world))
        deleted, missing = [await world.begin("DELETE", path).end() for _ in range(2)]
        check_exchange(one, "delete", deleted)
        check_exchange(one, "delete", missing)
        assert deleted.json() == {"id": "resp_mine", "object": "response", "deleted": True}
        assert missing.status == (await world.get(path)).status == 404


# -- conversations ----------------------------------------------------------------------------------------------------


async def check_same(world: World, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Check that two inputs are one conversation to the model."""
    counted = [await world.post(f"{RESPONSES}/input_tokens", body) for body in (one, other)]
    assert counted[0].json() == counted[1].json()
    assert counted[0].json()["input_tokens"] > 0


def said(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


async def test_a_response_goes_on_from_the_one_before() -> None:
    async with open_world(model=Says("It is 4.")) as world:
        await create(world, "a", instructions="Never mind.")
        asked = {"previous_response_id": "resp_a", "input": "And?", "instructions": "Be brief."}
        whole = [said("hello"), said("It is 4.", "assistant"), said("And?")]
        await check_same(world, asked, {"input": whole, "instructions": "Be brief."})
        await create(world, "b", **asked)
        items = (await get(world, "resp_b/input_items?order=asc"))["data"]
        assert [item["role"] for item in items] == ["user", "assistant", "user"]
        assert (await get(world, "resp_b"))["previous_response_id"] == "resp_a"


async def test_a_call_that_was_cut_is_not_part_of_what_follows() -> None:
    weather = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
    async with open_world(model=Says("I look. " + CALL)) as world:
        found = await create(world, "a", tools=[weather], max_output_tokens=len("I look. " + CALL) - 20)
        assert [item["status"] for item in found["output"]] == ["completed", "incomplete"]
        text = found["output"][0]["content"][0]["text"]
        whole = [said("hello"), said(text, "assistant"), said("And?")]
        await check_same(world, {"previous_response_id": "resp_a", "input": "And?"}, {"input": whole})


async def test_a_reference_stands_for_its_item() -> None:
    async with open_world(model=Says("It is 4.")) as world:
        (message,) = (await create(world, "a"))["output"]
        referring = [said("hello"), {"type": "item_reference", "id": message["id"]}]
        await check_same(world, {"input": referring}, {"input": [said("hello"), said("It is 4.", "assistant")]})


async def test_an_unknown_item_or_previous_response_is_refused(world: World) -> None:
    error = await create(world, status=404, previous_response_id="resp_other")
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    await create(world, "c")
    for item_id in ("msg_other_0", "msg_c_7", "something"):
        error = await create(world, "b", 404, input=[{"id": item_id}])
        assert (error["param"], item_id in error["message"]) == ("input", True)
    await in_background(world, "a", max_output_tokens=3)
    error = await create(world, "b", 400, previous_response_id="resp_a")
    assert error["code"] == "previous_response_not_ended"
    world.gate.open()


async def test_input_items_are_listed_in_pages() -> None:
    asked: Any = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": PARIS},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "Sun."}]},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "y"},
        {"id": "given", "role": "assistant", "content": [{"type": "output_text", "text": "Sun."}]},
    ]
    async with open_world(n_ctx=4096) as world:
        await create(world, input=asked)
        whole = await get(world, "resp_mine/input_items")
        TypeAdapter(ResponseItemList).validate_python(whole)
        types = [item["type"] for item in whole["data"]]
        assert types == [item.get("type", "message") for item in reversed(asked)]
        assert (whole["first_id"], whole["has_more"]) == ("given", False)
        first = await get(world, "resp_mine/input_items?order=asc&limit=4")
        assert (len(first["data"]), first["has_more"]) == (4, True)
        rest = await get(world, f"resp_mine/input_items?order=asc&limit=4&after={first['last_id']}")
        assert [*first["data"], *rest["data"]] == whole["data"][::-1]
        assert not rest["has_more"]
        for query in ("limit=0", "limit=101", "order=up", "include=x"):
            await get(world, f"resp_mine/input_items?{query}", 400)
        await get(world, "resp_mine/input_items?after=x", 404)
        await get(world, "resp_other/input_items", 404)


@pytest.mark.parametrize("word", ["input_items", "cancel", "input_items/input_items"])
async def test_an_id_may_end_in_a_word_of_the_api_if_its_slash_is_encoded(word: str) -> None:
    encoded = f"resp_mine%2F{word.replace('/', '%2f')}"
    async with open_world() as world:
        await create(world, f"mine/{word}", background=True)
        await asyncio.gather(*world.app.state.responses._live._tasks)
        response = await get(world, encoded)
        assert (response["object"], response["id"]) == ("response", f"resp_mine/{word}")
        assert (await get(world, f"{encoded}/input_items"))["object"] == "list"
        assert (await world.get(f"{RESPONSES}/{encoded}?stream=true&starting_after=-1")).named_events()
        assert (await world.begin("DELETE", f"{RESPONSES}/{encoded}").end()).status == 200
        await get(world, encoded, 404)


# -- in the background ------------------------------------------------------------------------------------------------


async def test_a_response_in_the_background_comes_although_nobody_waits(world: World) -> None:
    found = await in_background(world)
    assert found["status"] in ("queued", "in_progress")
    assert (found["background"], found["output"], found["usage"]) == (True, [], None)
    await world.step(3)
    running = checked(await get(world))
    assert running["status"] == "in_progress"
    world.gate.open()
    ended = await until_ended(world)
    assert (ended["status"], ended["usage"]["output_tokens"]) == ("incomplete", 30)
    assert ended["output"][0]["content"][0]["text"].startswith(running["output"][0]["content"][0]["text"])


async def test_a_cancel_stops_it_and_says_how_it_stands(world: World) -> None:
    await in_background(world)
    await world.step(2)
    await world.held()
    undeleted = await world.begin("DELETE", f"{RESPONSES}/resp_mine").end()
    assert (undeleted.status, undeleted.json()["error"]["message"]) == (400, "Cannot delete an in-flight response.")
    asked = asyncio.create_task(cancel(world))
    await world.cancelling("mine")
    world.gate.open()
    answer = await asked
    found = checked(answer.json())
    assert (answer.status, found["status"], found["id"]) == (200, "cancelled", "resp_mine")
    assert (await world.ended("mine"))["cancel_reason"] == "explicit"
    again = await cancel(world)
    assert (again.status, again.json()) == (200, found)
    assert await get(world) == found
    assert (await world.begin("DELETE", f"{RESPONSES}/resp_mine").end()).status == 200


@pytest.mark.parametrize("reason", ["explicit", "deadline", "shutdown"])
async def test_whatever_ends_it_that_is_stored_with_its_events(world: World, reason: str) -> None:
    await in_background(world, timeout=60)
    await world.step(2)
    await world.held()
    following = world.begin("GET", f"{RESPONSES}/resp_mine?stream=true")
    await following.until_body(b"output_text.delta")
    await world.bring_about(reason)
    await world.cancelling("mine")
    world.gate.open()
    events = checked_events(await following.end())
    error, last = events[-2:]
    assert (error["type"], error["code"], last["type"]) == ("error", reason, "response.failed")
    assert await until_ended(world) == last["response"]
    assert last["response"]["status"] == ("cancelled" if reason == "explicit" else "failed")
    assert checked_events(await world.get(f"{RESPONSES}/resp_mine?stream=true")) == events


@pytest.mark.parametrize("background", [False, True])
async def test_a_cancel_of_what_has_ended_is_refused_as_openai_does(background: bool) -> None:
    async with open_world(model=Says("It is 4.")) as world:
        await create(world, background=background)
        await until_ended(world)
        answer = await cancel(world)
        kind = "completed" if background else "synchronous"
        assert (answer.status, answer.json()["error"]["message"]) == (400, f"Cannot cancel a {kind} response.")
        assert (await get(world))["status"] == "completed"
        assert (await cancel(world, "resp_other")).status == 404
        if not background:
            error = await get(world, "resp_mine?stream=true", 400)
            words = "This response cannot be streamed because it was not created with background=true."
            assert error["message"] == words


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_reader_that_leaves_or_does_not_read_stops_no_response_in_the_background(
    world: World, leaves: bool
) -> None:
    body = {"input": "x", "background": True, "stream": True, "max_output_tokens": 600, "ignore_eos": True}
    world.hold()
    asked = world.begin("POST", RESPONSES, body, headers={"x-request-id": "mine"})
    await world.held()
    await asked.until_body(b"response.queued")
    if leaves:
        await asked.left()
    else:
        asked.stop_reading()
    world.gate.open()
    assert (await until_ended(world))["usage"]["output_tokens"] == 600
    assert (await world.request("mine"))["status"] == "finished"
    if not leaves:
        asked.read_on()
        assert accumulated(checked_events(await asked.end())) is None


async def test_a_full_queue_refuses_it_and_keeps_nothing() -> None:
    async with open_world(parallel=1, max_queue=1) as world:
        await in_background(world, "first")
        await create(world, "second", background=True)
        assert (await get(world, "resp_second"))["status"] == "queued"
        assert (await create(world, "third", 429, background=True))["code"] == "queue_full"
        await get(world, "resp_third", 404)
        assert (await cancel(world, "resp_second")).json()["status"] == "cancelled"
        world.gate.open()
        assert (await until_ended(world, "first"))["status"] == "incomplete"


# -- events once more -------------------------------------------------------------------------------------------------


async def test_a_stream_goes_on_where_it_was_left() -> None:
    async with open_world(model=Says("I look. " + CALL)) as world:
        world.hold()
        tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]
        body = {"input": "hello", "background": True, "stream": True, "tools": tools, "max_output_tokens": 200}
        body |= {"include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "top_logprobs": 1}
        asked = world.begin("POST", RESPONSES, body, headers={"x-request-id": "mine"})
        while b"output_text.delta" not in asked.body:  # in how many steps the prompt is computed depends on the machine
            await world.step()
        asked.leave()
        seen = checked_events(await asked.end())
        last = seen[-1]["sequence_number"]
        rest = world.begin("GET", f"{RESPONSES}/resp_mine?stream=true&starting_after={last}")
        await rest.until_headers()
        world.gate.open()
        following = checked_events(await rest.end(), last + 1)
        live = [*seen, *following]
        assert accumulated(live).output[1].name == "get_weather"
        assert live[-1]["response"]["output"][0]["content"][0]["logprobs"]
        # After its end, from what is kept.
        assert checked_events(await world.get(f"{RESPONSES}/resp_mine?stream=true")) == live
        tail = await world.get(f"{RESPONSES}/resp_mine?stream=true&starting_after={len(live) - 3}")
        assert checked_events(tail, len(live) - 2) == live[-2:]
        assert (await world.get(f"{RESPONSES}/resp_mine?stream=true&starting_after=10000")).body == b""


async def test_readers_leave_at_any_turn_of_the_loop_and_wait_for_events_that_do_not_come(world: World) -> None:
    await in_background(world)
    await world.step(2)
    await world.held()
    late = world.begin("GET", f"{RESPONSES}/resp_mine?stream=true&starting_after=10000")
    for n_turns in range(40):
        following = world.begin("GET", f"{RESPONSES}/resp_mine?stream=true")
        for _ in range(n_turns):
            await asyncio.sleep(0)
        await following.left()
    await late.until_headers()
    world.gate.open()
    assert (await late.end()).body == b""
    assert (await until_ended(world))["status"] == "incomplete"  # it had all its tokens


# -- no room ----------------------------------------------------------------------------------------------------------


def fill(world: World) -> None:
    store = world.app.state.responses.store
    (pages,) = store._commits._connection.execute("PRAGMA page_count").fetchone()
    store._commits._connection.execute(f"PRAGMA max_page_count = {pages}")


# The model is not told of it, but the response is.
LONG = {"tools": [{"type": "web_search", "note": "x" * 100_000}]}


async def test_a_full_disk_fails_what_is_to_be_stored_and_nothing_else(world: World) -> None:
    old = await create(world, "old")
    assert "stores" not in (await world.get("/health")).json()
    fill(world)
    assert (await create(world, "a", 507, **LONG))["code"] == "storage_full"
    told = await world.get("/health")
    assert (told.status, told.json()["status"], told.json()["stores"]) == (200, "ok", False)
    check_exchange("/health", "get", told)
    world.hold()  # or it may have come to its end before the disk says no
    assert (await create(world, "b", 507, background=True, **LONG))["code"] == "storage_full"
    world.gate.open()
    body = {"input": "hello", "stream": True, "max_output_tokens": 3} | LONG
    events = checked_events(await world.post(RESPONSES, body, headers={"x-request-id": "c"}))
    assert [event.get("code") for event in events[-2:]] == ["storage_full", None]
    assert events[-1]["response"]["status"] == "failed"
    for name in "abc":
        await get(world, f"resp_{name}", 404)
    assert await get(world, "resp_old") == old
    await create(world, "d", store=False, **LONG)
    assert (await world.ended("b"))["status"] == "cancelled"


async def test_an_end_that_cannot_be_stored_is_a_failure(world: World) -> None:
    await in_background(world, max_output_tokens=300)
    fill(world)
    world.gate.open()
    found = await until_ended(world)
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    assert "stored" in found["error"]["message"]


# -- what is damaged --------------------------------------------------------------------------------------------------


GOES_ON = {"input": "x", "previous_response_id": "resp_bad"}
REFERS = {"input": [{"type": "item_reference", "id": "msg_bad_i0"}, {"role": "user", "content": "x"}]}


async def damage(world: World, change: str) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute(f"UPDATE responses SET {change} WHERE id = 'resp_bad'")

    await asyncio.to_thread(world.app.state.responses.store.do(work, "").result)


NO_TEXT = "CAST(x'534543524554fffe' AS TEXT)"
NO_ITEM = """'[{"id": "msg_bad_i0", "type": "message", "role": "SECRET"}]'"""


@pytest.mark.parametrize(
    ("change", "paths", "bodies"),
    [
        (f"response = {NO_TEXT}", ["", "?stream=true"], [GOES_ON]),
        (f"input = {NO_TEXT}", ["/input_items"], [GOES_ON]),
        (f"input = {NO_ITEM}", [], [GOES_ON, REFERS]),
        (f"log = {NO_TEXT}", ["?stream=true"], []),
    ],
)
async def test_what_is_damaged_costs_its_own_response_and_is_told_to_nobody(
    world: World, change: str, paths: list[str], bodies: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    await in_background(world, "bad")
    world.gate.open()
    await until_ended(world, "bad")
    good = await create(world, "good")
    await damage(world, change)
    errors = [await get(world, f"resp_bad{path}", 500) for path in paths]
    errors += [await create(world, f"next-{number}", 500, **body) for number, body in enumerate(bodies)]
    assert {error["code"] for error in errors} == {"response_damaged"}
    assert "SECRET" not in str(errors) + caplog.text
    assert await get(world, "resp_good") == good
    assert (await world.begin("DELETE", f"{RESPONSES}/resp_bad").end()).status == 200


async def test_a_response_that_ended_with_its_server_has_events_too(world: World) -> None:
    await in_background(world, "bad")
    world.gate.open()
    await until_ended(world, "bad")
    await damage(world, f"status = '{LOST}', log = NULL")
    found = await get(world, "resp_bad")
    assert (found["status"], found["error"]) == ("failed", ENDED_WITH_SERVER)
    events = checked_events(await world.get(f"{RESPONSES}/resp_bad?stream=true"))
    kinds = [event["type"] for event in events]
    begun = ["response.created", "response.queued", "response.in_progress"]
    assert kinds == [*begun, "error", "response.failed"]
    assert {event["message"] for event in events if "message" in event} == {ENDED_WITH_SERVER["message"]}
    tail = await world.get(f"{RESPONSES}/resp_bad?stream=true&starting_after=3")
    assert checked_events(tail, 4) == events[4:]
