"""Requests from the reading of their heads on: listed once, cancelled in any moment, refused without a trace."""

import asyncio
import json
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import Request
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import CHAT, COMPLETIONS, World, accepted, open_world

BODY = {"prompt": "hello", "max_tokens": 1}


async def uploads(world: World, path: str = COMPLETIONS, **headers: str) -> Exchange:
    """A request, called "mine", whose head has been read. Its body has not come."""
    arrive, arrived = world.engine.arrive, asyncio.Event()

    def arriving(**origin: Any) -> Request:
        arrived.set()
        return arrive(**origin)

    world.engine.arrive = arriving  # type: ignore[method-assign]
    exchange = world.begin("POST", path, content=None, headers={"x-request-id": "mine"} | headers)
    async with asyncio.timeout(LIMIT):
        await arrived.wait()
    return exchange


async def told_early(exchange: Exchange, status: int, code: str) -> None:
    """The answer comes before the rest of the body, and ends with it."""
    await exchange.until(lambda: exchange.status)
    assert (exchange.status, exchange.headers["connection"]) == (status, "close")
    exchange.body_arrives(b"the rest")
    await exchange.end()
    assert exchange.json()["error"]["code"] == code


async def test_a_request_is_listed_once_while_its_body_comes(world: World) -> None:
    upload = await uploads(world, **{"x-session-id": "tab", "x-supersede": "editor"})
    (entry,) = await world.requests()
    assert (entry["id"], entry["status"], entry["phase"]) == ("mine", "waiting", "preparing")
    assert (entry["session"], entry["supersede"], entry["n"]) == ("tab", "editor", 1)
    assert (await world.get("/v1/sessions/tab")).json()["requests"] == ["mine"]
    upload.body_arrives(json.dumps(BODY).encode())
    await upload.end()
    assert upload.status == 200
    assert [(one["id"], one["status"]) for one in await world.requests()] == [("mine", "finished")]


@pytest.mark.parametrize("path", ["/v1/requests/mine/cancel", "/v1/sessions/tab/cancel"])
async def test_a_cancel_ends_a_request_while_its_body_comes(world: World, path: str) -> None:
    upload = await uploads(world, **{"x-session-id": "tab"})
    upload.body_arrives(b'{"prompt": "hel', more=True)
    answer = (await world.post(path)).json()
    told = answer["requests"][0] if "requests" in answer else answer
    assert (told["outcome"], told["phase"]) == ("cancelled", "preparing")
    await told_early(upload, 499, "explicit")
    assert [(one["id"], one["status"]) for one in await world.requests()] == [("mine", "cancelled")]


async def test_a_hold_and_a_shutdown_end_a_request_before_its_body_has_come(world: World) -> None:
    assert (await world.post("/v1/requests/mine/cancel?hold=30")).status == 202
    await told_early(await uploads(world), 499, "explicit")
    upload = await uploads(world)
    await world.shut_down()
    await told_early(upload, 503, "shutdown")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, b"no JSON"),
        (COMPLETIONS, b'{"prompt": 1}'),
        (COMPLETIONS, json.dumps({"prompt": "x" * 5_000, "session_id": "s"}).encode()),
        (CHAT, json.dumps({"messages": [], "session_id": "s", "parent_session_id": "s"}).encode()),
        ("/apply-template", b'{"messages": 1}'),
        ("/infill", b"{}"),
    ],
)
async def test_an_id_is_free_again_when_the_answer_of_a_refused_request_begins(path: str, body: bytes) -> None:
    async with open_world(max_queue=1) as world:
        refused = world.begin("POST", path, body, headers={"x-request-id": "mine", "x-session-id": "tab"})
        refused.stop_reading()
        await refused.until_blocked()
        again = await world.begin("POST", COMPLETIONS, BODY, headers={"x-request-id": "mine"}).end()
        assert again.status == 200
        refused.read_on()
        await refused.end()
        assert refused.status == 400
        assert [one["status"] for one in await world.requests()] == ["finished"]
        assert (await world.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("reason", [CancelReason.EXPLICIT, CancelReason.DISCONNECT])
async def test_a_cancel_right_before_the_acceptance_wins(world: World, reason: CancelReason) -> None:
    accept, seen = world.engine.accept, accepted(world)

    def cancel_and_accept(request: Any, **options: Any) -> None:
        assert world.engine.cancel(request, reason)
        accept(request, **options)

    world.engine.accept = cancel_and_accept  # type: ignore[method-assign]
    assert (await world.complete(headers={"x-request-id": "mine"}).end()).status == 499
    assert seen == []
    ended = await world.request("mine")
    assert (ended["status"], ended["phase"], ended["cancel_reason"]) == ("cancelled", "preparing", reason)


async def test_a_count_of_tokens_is_listed_and_leaves_no_trace(world: World) -> None:
    counted = await uploads(world, "/v1/messages/count_tokens", **{"x-session-id": "tab"})
    (entry,) = await world.requests()
    assert (entry["phase"], entry["session"]) == ("preparing", None)
    counted.body_arrives(b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}')
    assert (await counted.end()).status == 200
    assert await world.requests() == []
