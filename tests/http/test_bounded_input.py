"""Schemas and templates that would never end: listed and cancelled like any request, and no other waits for them."""

import asyncio
import signal
from typing import Any

import pytest

from pyllmcancel.requests.request import Request
from tests.support.chat_models import Templated
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import World, open_world
from tests.support.marks import mostly_long

# Of these llguidance makes nothing within a minute.
ENDLESS: dict[str, Any] = {"type": "integer", "multipleOf": 123456789}
DIVIDED = {"type": "integer", "multipleOf": 3}
PATTERNS = {"allOf": [{"type": "string", "pattern": f".*{chr(97 + n % 26)}.{{20}}"} for n in range(40)]}
LOOP = {"role": "user", "content": "loop"}
LOOPS = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"


def tool(name: str, parameters: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


async def prepares(world: World, **fields: Any) -> tuple[Exchange, Request]:
    """A completion, called "hostile", whose schema is being compiled."""
    preparers, begun = world.app.state.server.preparers, asyncio.Event()
    run = preparers.run

    def running(*arguments: Any) -> Any:
        begun.set()
        return run(*arguments)

    preparers.run = running
    hostile = world.complete(json_schema=ENDLESS, headers={"x-request-id": "hostile"}, **fields)
    async with asyncio.timeout(LIMIT):
        await begun.wait()
    (request,) = world.engine.registry.requests()
    return hostile, request


FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": PATTERNS}}
STRICT_TOOLS = [tool("f", {}), tool("g", {"properties": {"a": DIVIDED}}, strict=True)]


@pytest.mark.parametrize(
    ("fields", "param"),
    mostly_long(
        [
            ({"json_schema": ENDLESS}, "json_schema"),
            ({"json_schema": {"$ref": "#"}}, "json_schema"),
            ({"response_format": FORM}, "response_format"),
            ({"tools": STRICT_TOOLS}, "tools[1].function.parameters"),
        ],
        ({"json_schema": ENDLESS}, "json_schema"),
    ),
)
async def test_a_schema_that_cannot_compile_is_a_named_400(world: World, fields: dict[str, Any], param: str) -> None:
    assert (await world.chat(max_tokens=1, **fields).end()).refusal == (400, param)


async def test_a_request_whose_schema_compiles_is_seen_and_no_other_waits_for_it(world: World) -> None:
    hostile, request = await prepares(world)
    seen = await world.request("hostile")
    assert (seen["status"], seen["phase"]) == ("waiting", "preparing")
    assert [entry["id"] for entry in await world.requests("?status=waiting")] == ["hostile"]
    assert (await world.complete(max_tokens=1).end()).status == 200
    assert (await world.get("/health")).status == 200
    again = await world.complete(max_tokens=1, headers={"x-request-id": "hostile"}).end()
    assert again.refusal == (400, "id"), "it is in use"
    assert not hostile.task.done()
    assert world.engine.registry.requests() == [request]


@pytest.mark.parametrize(
    ("how", "reason", "status"),
    [
        ("cancel", "explicit", 499),
        ("cancel without waiting", "explicit", 499),
        ("session's cancel", "explicit", 499),
        ("newer request of the key", "superseded", 499),
        ("shutdown", "shutdown", 503),
        ("client", "disconnect", 0),
    ],
)
async def test_a_request_whose_schema_compiles_ends_at_once(world: World, how: str, reason: str, status: int) -> None:
    hostile, _ = await prepares(world, session_id="tab", supersede="editor")
    assert (await world.request("hostile"))["session"] == "tab"
    match how:
        case "client":
            hostile.leave()
        case "shutdown":
            await world.shut_down()
        case "newer request of the key":
            assert (await world.complete(max_tokens=1, supersede="editor").end()).status == 200
        case "session's cancel":
            (answer,) = (await world.post("/v1/sessions/tab/cancel")).json()["requests"]
            assert (answer["id"], answer["outcome"], answer["phase"]) == ("hostile", "cancelled", "preparing")
        case _:
            query = "?wait=false" if "without" in how else ""
            answer = (await world.post(f"/v1/requests/hostile/cancel{query}")).json()
            assert (answer["outcome"], answer["reason"], answer["phase"]) == ("cancelled", "explicit", "preparing")
    await hostile.end()
    assert (hostile.status, hostile.json()["error"]["code"] if status else None) == (status, reason if status else None)
    ended = await world.ended("hostile")
    assert (ended["status"], ended["phase"], ended["cancel_reason"]) == ("cancelled", "preparing", reason)
    counted = f'requests_cancelled_total{{reason="{reason}"}} 1.0'
    assert counted in (await world.get("/metrics")).body.decode()


PARENTHESES = "{{ " + "(" * 300_000 + "1" + ")" * 300_000 + " }}"


@pytest.mark.parametrize(
    "template",
    mostly_long(["{{ 10**(10**8) }}", LOOPS, "{{ 'a' * 10**9 }}", PARENTHESES], "{{ 'a' * 10**9 }}"),
    ids=["a power", "loops", "a long text", "parentheses"],
)
async def test_a_template_beyond_all_bounds_refuses_chats_only(template: str) -> None:
    async with open_world(model=Templated(template)) as world:
        chat = world.chat()
        assert (await world.complete(max_tokens=1).end()).status == 200
        assert (await world.get("/health")).status == 200
        await chat.end()
        assert chat.status == 400
        assert chat.json()["error"]["param"] in ("chat_template", "messages")
        assert (await world.complete(max_tokens=1).end()).status == 200


async def test_a_cancel_ends_a_template_that_would_go_on() -> None:
    template = "{% if messages[0].content == 'loop' %}" + LOOPS + "{% endif %}{{ messages[0].content }}"
    message = {"role": "user", "content": "hello"}
    async with open_world(model=Templated(template)) as world:
        assert (await world.chat(messages=[message], max_tokens=1).end()).status == 200
        helper = world.app.state.server.chat_template._helper
        process, loop = helper._process, asyncio.get_running_loop()
        renders, receive = asyncio.Event(), helper._receive

        def receiving(*arguments: Any) -> bytes:
            loop.call_soon_threadsafe(renders.set)
            return receive(*arguments)

        helper._receive = receiving
        endless = world.chat(messages=[LOOP], headers={"x-request-id": "endless"})
        async with asyncio.timeout(LIMIT):
            await renders.wait()
        assert (await world.post("/v1/requests/endless/cancel")).json()["phase"] == "preparing"
        await endless.end()
        assert endless.failure == (499, "explicit")
        # Ended by the cancel, and not by its limit of time, which is another signal.
        assert process.returncode == -signal.SIGKILL
        refused = await world.chat(messages=[LOOP]).end()
        assert refused.refusal == (400, "messages")
        assert "longer than" in refused.json()["error"]["message"]
        assert (await world.chat(messages=[message], max_tokens=1).end()).status == 200
