"""Sessions group, and supersede keys supersede: what lives, what is listed, and what a cancel reaches."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from pyllmcancel.server.limits import INLINE_BODY
from tests.support.http_asgi import LIMIT, Exchange
from tests.support.http_world import World, open_world

GAP_TOKENS = {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}


def member(world: World, name: str, session: str, parent: str | None = None, **fields: Any) -> Exchange:
    """A completion that goes on until it is cancelled."""
    headers = {"x-request-id": name, "x-session-id": session}
    if parent is not None:
        headers["x-parent-session-id"] = parent
    return world.complete(name, headers=headers, **({"max_tokens": 100, "ignore_eos": True} | fields))


@pytest.mark.parametrize("n", [1, 3])
async def test_ten_arrivals_of_one_address_leave_one_live_and_the_tenth_completes(n: int) -> None:
    """Autocompletion: every keystroke sends a request, and the answers of the older ones are not wanted."""
    async with open_world(supersede="client-ip", parallel=3) as world:
        world.hold()
        exchanges = []
        for number in range(10):
            name = f"key-{number}"
            exchanges.append(
                world.complete(name, n=n, max_tokens=3, stream=True, headers={"x-request-id": name}, ignore_eos=True)
            )
            await world.added(name)
            counts = world.engine.counts()
            assert counts.waiting + counts.running == 1
        world.gate.open()
        for exchange in exchanges:
            await exchange.end()
        listed = {entry["id"]: entry for entry in await world.requests()}
        assert len(listed) == 10
        for number, exchange in enumerate(exchanges[:-1]):
            assert listed[f"key-{number}"]["cancel_reason"] == "superseded"
            assert listed[f"key-{number}"]["superseded_by"] == f"key-{number + 1}"
            assert "superseded" in exchange.events[-1]
        assert listed["key-9"]["status"] == "finished"
        assert exchanges[-1].events[-1] == "[DONE]"


@pytest.mark.parametrize("n", [2, 10])
async def test_all_chats_of_one_session_complete_as_alone(n: int) -> None:
    """A title, a summary, and the turn itself: agents send the session with each of them."""
    async with open_world(parallel=4) as world:

        def chat(number: int) -> Exchange:
            body = {"messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 20}
            headers = {"x-session-id": "conversation"}
            return world.begin("POST", "/v1/chat/completions", body | {"temperature": 0}, headers=headers)

        alone = [(await chat(number).end()).json()["choices"] for number in range(n)]
        together = [chat(number) for number in range(n)]
        assert [(await exchange.end()).json()["choices"] for exchange in together] == alone
        assert (await world.get("/v1/sessions/conversation")).json()["n_requests"] == 2 * n


async def test_a_cancel_ends_all_requests_of_a_session_and_its_descendants_and_no_others() -> None:
    async with open_world(parallel=3) as world:
        world.hold()
        family = [
            member(world, "a1", "root"),
            member(world, "a2", "root"),
            member(world, "b", "child", "root"),
            member(world, "c", "grandchild", "child"),
            member(world, "d", "great-grandchild", "grandchild"),
        ]
        stranger = member(world, "stranger", "another", max_tokens=4)
        await world.added("stranger")
        answer = (await world.post("/v1/sessions/root/cancel?wait=false")).json()
        world.gate.open()
        assert sorted(cancelled["id"] for cancelled in answer["requests"]) == ["a1", "a2", "b", "c", "d"]
        assert {cancelled["outcome"] for cancelled in answer["requests"]} == {"cancelled"}
        assert [(await exchange.end()).status for exchange in family] == [499] * 5
        assert (await stranger.end()).status == 200
        sessions = {entry["id"]: entry for entry in (await world.get("/v1/sessions")).json()["data"]}
        assert sessions["grandchild"]["parent"] == "child"
        assert all(not entry["requests"] for entry in sessions.values())
        assert (await world.get("/v1/sessions?live=true")).json()["data"] == []


async def test_a_cancel_reaches_a_request_whose_prompt_is_being_tokenized(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not accepted yet: a worker reads its long prompt."""
    reading, may_end = threading.Event(), threading.Event()
    tokenize = world.model.tokenize

    def slowly(text: str | bytes, **options: bool) -> list[int]:
        reading.set()
        assert may_end.wait(LIMIT)
        return tokenize(text, **options)

    assert (await member(world, "first", "child", "parent", max_tokens=1).end()).status == 200
    monkeypatch.setattr(world.model, "tokenize", slowly)
    late = member(world, "late", "child", "parent", metadata={"long": "x" * INLINE_BODY})
    assert await asyncio.to_thread(reading.wait, LIMIT)
    (cancelled,) = (await world.post("/v1/sessions/parent/cancel?wait=false")).json()["requests"]
    assert (cancelled["id"], cancelled["phase"]) == ("late", "preparing")
    assert (await late.end()).json()["error"]["code"] == "explicit"
    may_end.set()
    assert (await member(world, "new", "child", "parent", max_tokens=1).end()).status == 200


async def test_descendants_can_be_left_out(world: World) -> None:
    world.hold()
    parent, child = member(world, "p", "parent"), member(world, "c", "child", "parent", max_tokens=5)
    await world.added("c")
    answer = (await world.post("/v1/sessions/parent/cancel?descendants=false&wait=false")).json()
    world.gate.open()
    assert [cancelled["id"] for cancelled in answer["requests"]] == ["p"]
    assert [(await parent.end()).status, (await child.end()).status] == [499, 200]


async def test_a_session_is_listed_with_its_live_requests() -> None:
    async with open_world(parallel=1) as world:
        world.hold()
        member(world, "running", "s")
        member(world, "waiting", "s")
        await world.added("waiting")
        entry = (await world.get("/v1/sessions/s")).json()
        assert (entry["id"], entry["object"], entry["owner"]) == ("s", "session", "")
        assert (entry["requests"], entry["n_requests"]) == (["running", "waiting"], 2)
        assert [one["id"] for one in await world.requests("?session=s")] == ["running", "waiting"]
        assert (await world.get("/v1/sessions/unknown")).status == 404


async def test_a_request_that_is_refused_does_not_cancel_its_keys_live_one(world: World) -> None:
    await world.running_stream("live", supersede="k")
    bad = [{"prompt": []}, {"prompt": "x", "n": 129}, {"prompt": "x" * 2000}, {"prompt": [999]}]
    for fields in bad:
        exchange = await world.complete(supersede="k", **fields).end()
        assert exchange.status == 400, exchange.body
    assert (await world.request("live"))["status"] == "running"


async def test_several_are_cancelled_by_their_ids_and_each_is_answered() -> None:
    async with open_world(parallel=1) as world:
        await world.complete(max_tokens=1, headers={"x-request-id": "ended"}).end()
        world.hold()
        live = [member(world, name, "s") for name in ("running", "waiting")]
        await world.added("waiting")
        ids = ["waiting", "unknown", "ended", "running"]
        answer = (await world.post("/v1/requests/cancel?wait=false", {"request_ids": ids})).json()
        world.gate.open()
        assert [(one["id"], one["outcome"]) for one in answer["data"]] == [
            ("waiting", "cancelled"),
            ("unknown", "unknown"),
            ("ended", "already_finished"),
            ("running", "cancelled"),
        ]
        assert [(await exchange.end()).status for exchange in live] == [499, 499]
        held = (await world.post("/v1/requests/cancel?hold=30", {"request_ids": ["later"]})).json()
        assert held["data"] == [{"id": "later", "outcome": "held", "hold_seconds": 30.0}]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"session": "s"}, ["running", "waiting-1"]),
        ({"status": "waiting"}, ["waiting-1", "waiting-2"]),
        ({"status": "running"}, ["running"]),
        ({"session": "s", "status": "waiting"}, ["waiting-1"]),
        ({"session": "unknown"}, []),
        ({"owner": ""}, ["running", "waiting-1", "waiting-2"]),
    ],
)
async def test_several_are_cancelled_by_a_filter(filters: dict[str, str], expected: list[str]) -> None:
    async with open_world(parallel=1) as world:
        world.hold()
        member(world, "running", "s")
        await world.held()
        member(world, "waiting-1", "s")
        await world.added("waiting-1")
        member(world, "waiting-2", "t")
        await world.added("waiting-2")
        answer = (await world.post("/v1/requests/cancel?wait=false", filters)).json()
        assert [one["id"] for one in answer["data"]] == expected


@pytest.mark.parametrize(
    "body", [{}, {"request_ids": []}, {"request_ids": ["a"], "session": "s"}, {"status": "finished"}, {"ids": ["a"]}]
)
async def test_a_cancel_that_does_not_say_which_is_refused(world: World, body: dict[str, Any]) -> None:
    assert (await world.post("/v1/requests/cancel", body)).status == 400


async def test_delete_cancels_too(world: World) -> None:
    world.hold()
    exchange = member(world, "mine", "s")
    await world.held()
    answer = (await world.begin("DELETE", "/v1/requests/mine").end()).json()
    assert (answer["id"], answer["outcome"], answer["reason"]) == ("mine", "cancelled", "explicit")
    assert (await exchange.end()).status == 499
    assert (await world.begin("DELETE", "/v1/requests/unknown").end()).status == 404


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (f"/v1/sessions/{'x' * 257}/cancel", "session_id"),
        (f"/v1/sessions/{'x' * 257}/cancel?hold=60", "session_id"),
        ("/v1/sessions/a\x7fb/cancel?hold=60", "session_id"),
        (f"/v1/requests/{'x' * 129}/cancel?hold=60", "request_id"),
        ("/v1/requests/two words/cancel?hold=60", "request_id"),
    ],
)
async def test_what_cannot_come_is_not_held(world: World, path: str, param: str) -> None:
    assert (await world.post(path)).refusal == (400, param)
