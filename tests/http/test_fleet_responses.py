"""Responses over replicas: one that is not here is asked of the others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pyllmcancel.server.config import ApiKey
from pyllmcancel.server.fleet.messages import AskResponse
from tests.http.test_responses_stored import cancel, create, get, in_background, until_ended
from tests.support.fleet import open_fleet
from tests.support.responses import RESPONSES, checked

pytestmark = pytest.mark.anyio

KEYS = (ApiKey("ann", "ann's"), ApiKey("bob", "bob's"))
ANN, BOB = {"authorization": "Bearer ann's"}, {"authorization": "Bearer bob's"}


async def test_a_response_is_found_wherever_it_is_and_asked_for_only_if_it_is_not_here() -> None:
    async with open_fleet("a", "b", "c") as (net, (a, b, _c)):
        made = await create(b)
        assert await get(b) == made
        assert net.asked == []
        assert checked(await get(a)) == made
        assert [who for who, _ in net.asked] == ["a"]
        assert (await get(a, "resp_nobody", 404))["code"] == "response_not_found"


async def test_its_input_is_found_too() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await create(b, input="what was said")
        listed = await get(a, "resp_mine/input_items")
        assert listed == await get(b, "resp_mine/input_items")
        assert listed["data"][0]["content"][0]["text"] == "what was said"


async def test_it_is_deleted_where_it_is() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await create(b)
        answer = await a.begin("DELETE", f"{RESPONSES}/resp_mine").end()
        assert (answer.status, answer.json()) == (200, {"id": "resp_mine", "object": "response", "deleted": True})
        for world in (a, b):
            await get(world, status=404)
        assert (await a.begin("DELETE", f"{RESPONSES}/resp_mine").end()).status == 404


async def test_one_in_the_background_is_looked_at_and_cancelled_from_elsewhere() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        await in_background(b)
        assert (await get(a))["status"] == "in_progress"
        net.asked.clear()
        assert (await get(a, "resp_mine?stream=true", 400))["code"] == "elsewhere"
        assert [message.asked for _, message in net.asked if isinstance(message, AskResponse)] == ["find"]
        assert (await get(a, "resp_nobody?stream=true", 404))["code"] == "response_not_found"
        refused = await a.begin("DELETE", f"{RESPONSES}/resp_mine").end()
        assert (refused.status, refused.json()["error"]["message"]) == (400, "Cannot delete an in-flight response.")
        cancelling = asyncio.create_task(cancel(a))
        await b.cancelling("mine")
        b.gate.open()
        answer = await cancelling
        assert answer.status == 200
        assert answer.json()["status"] in ("cancelled", "in_progress")
        assert (await until_ended(b))["status"] == "cancelled"
        assert (await get(a))["status"] == "cancelled"


async def test_one_that_has_ended_is_refused_in_the_same_words() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await create(b)
        here, there = await cancel(b), await cancel(a)
        assert (there.status, there.json()["error"]["message"]) == (400, here.json()["error"]["message"])


async def test_a_conversation_goes_on_from_replica_to_replica() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        worlds = [a, b, b, a, b, a]
        previous: dict[str, Any] = {}
        for number, world in enumerate(worlds):
            made = await create(world, f"turn{number}", input=f"say {number}", **previous)
            previous = {"previous_response_id": made["id"]}
        for world in (a, b):
            listed = await get(world, "resp_turn5/input_items?limit=100&order=asc")
            said = [one["content"][0]["text"] for one in listed["data"] if one["role"] == "user"]
            assert said == [f"say {number}" for number in range(len(worlds))]
            assert [one["role"] for one in listed["data"]] == ["user", "assistant"] * 5 + ["user"]
        net.silent = {"b"}
        answer = await a.post(RESPONSES, {"input": "x", "previous_response_id": "resp_turn5"})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "replica_unreached")
        assert (answer.headers["x-unreached"], answer.headers["retry-after"]) == ("b", "1")
        net.silent, net.left_out = set(), {"b"}
        answer = await a.post(RESPONSES, {"input": "x", "previous_response_id": "resp_turn5"})
        assert (answer.status, answer.json()["error"]["code"]) == (404, "previous_response_not_found")


async def test_one_that_has_not_ended_elsewhere_is_not_gone_on_from() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await in_background(b)
        error = await create(a, "next", 400, previous_response_id="resp_mine")
        assert error["code"] == "previous_response_not_ended"
        b.gate.open()


async def test_owners_find_their_own_only() -> None:
    async with open_fleet("a", "b", api_keys=KEYS) as (_, (a, b)):
        await create(b, headers=ANN)
        for path in ("resp_mine", "resp_mine/input_items"):
            await get(a, path, 404, headers=BOB)
        assert (await cancel(a, headers=BOB)).status == 404
        assert (await a.begin("DELETE", f"{RESPONSES}/resp_mine", headers=BOB).end()).status == 404
        error = await create(a, "next", 404, previous_response_id="resp_mine", headers=BOB)
        assert error["code"] == "previous_response_not_found"
        assert (await get(a, headers=ANN))["id"] == "resp_mine"


async def test_a_replica_that_makes_conversations_up_finds_an_end() -> None:
    async with open_fleet("a", "b") as (net, (a, _)):

        class Liar:
            n_asked = 0

            async def receive(self, said: Any) -> dict[str, Any]:
                self.n_asked += 1
                return {"found": {"items": [], "missing": f"resp_{self.n_asked}", "n_bytes": 0}}

        liar = Liar()
        net.fleets["b"] = liar  # type: ignore[assignment]
        assert (await create(a, "next", 404, previous_response_id="resp_0"))["code"] == "previous_response_not_found"
        assert liar.n_asked < 40


@pytest.mark.parametrize("items", [[1], [{}], [{"id": 1}], "text", None])
async def test_what_a_replica_gives_as_a_conversation_and_is_none_is_not_found(items: Any) -> None:
    async with open_fleet("a", "b") as (net, (a, _)):

        class Liar:
            async def receive(self, said: Any) -> dict[str, Any]:
                return {"found": {"items": items, "missing": None}}

        net.fleets["b"] = Liar()  # type: ignore[assignment]
        assert (await create(a, "next", 404, previous_response_id="resp_0"))["code"] == "previous_response_not_found"
        assert (await get(a, "resp_0/input_items", 404))["code"] == "response_not_found"


async def test_what_is_too_long_for_another_replica_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await create(b, input="what was said")
        kept = await b.app.state.server.responses.created.part("", "resp_mine", output=True)
        length = len(json.dumps(kept.items, separators=(",", ":")))
        assert length < kept.n_bytes
        for most, status in ((length - 1, 400), (length, 200)):
            monkeypatch.setattr("pyllmcancel.server.responses.stored.MAX_TO_PEERS", most)
            made = await create(a, f"next{most}", status, previous_response_id="resp_mine")
            assert made.get("code") == ("elsewhere" if status == 400 else None)
        monkeypatch.setattr("pyllmcancel.server.responses.stored.MAX_TO_PEERS", 10)
        for path in ("resp_mine", "resp_mine/input_items"):
            error = await get(a, path, 400)
            assert (error["code"], "longer than the 10 bytes" in error["message"]) == ("elsewhere", True)
            await get(b, path)


async def test_an_id_that_no_message_has_room_for_is_not_asked_for() -> None:
    async with open_fleet("a", "b") as (net, (a, _)):
        await get(a, f"resp_{'x' * 9_000}", 404)
        assert net.asked == []
