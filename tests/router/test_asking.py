"""Questions to all models' processes are answered, whichever has ended or is stuck; and news for them are bounded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.router import cancels
from pyllmcancel.router.front import Front
from pyllmcancel.router.newer import NewerRequests
from pyllmcancel.server.fleet.messages import News, Superseding
from tests.router.world import COMPLETIONS, open_router
from tests.support.http_asgi import Exchange

pytestmark = pytest.mark.anyio


async def test_a_stuck_process_delays_no_cancel_of_a_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancels, "DEADLINE_SECONDS", 0.01)
    async with open_router(tmp_path, "a", "b") as world:
        assert (await world.complete("a").end()).status == 200
        (tmp_path / "a.stuck").touch()
        stream = world.complete("b", "mine", session_id="turn", stream=True, until="never")
        await stream.next_event()
        told = (await world.post("/v1/sessions/turn/cancel")).json()
        assert [(one["id"], one["outcome"]) for one in told["requests"]] == [("mine", "cancelled")]
        await stream.end()
        await world.until(lambda: any("cancel_families" in line for line in world.log_of("a")))
        (tmp_path / "a.stuck").unlink()


async def test_a_cancel_waits_for_a_stuck_process_that_has_a_request_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancels, "DEADLINE_SECONDS", 0.01)
    async with open_router(tmp_path, "a", "b") as world:
        streams = [world.complete(one, one, session_id="turn", stream=True, until="never") for one in ("a", "b")]
        for stream in streams:
            await stream.next_event()
        (tmp_path / "a.stuck").touch()
        cancel = world.begin("POST", "/v1/sessions/turn/cancel")
        await streams[1].end()
        assert not cancel.complete
        (tmp_path / "a.stuck").unlink()
        assert {one["id"] for one in (await cancel.end()).json()["requests"]} == {"a", "b"}


async def test_a_session_is_cancelled_in_a_process_that_does_not_know_its_parent(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b") as world:
        assert (await world.complete("a", session_id="turn", parent_session_id="chat").end()).status == 200
        stream = world.complete("b", "mine", session_id="turn", stream=True, until="never")
        await stream.next_event()
        told = (await world.post("/v1/sessions/chat/cancel")).json()
        assert [one["id"] for one in told["requests"]] == ["mine"]
        await stream.end()


async def test_a_sessions_request_that_arrived_before_its_cancel_is_cancelled_though_its_body_comes_later(
    tmp_path: Path,
) -> None:
    async with open_router(tmp_path, "a", "b") as world:
        stream = world.complete("a", "known", session_id="turn", stream=True, until="never")
        await stream.next_event()
        late = Exchange(world.app, "POST", COMPLETIONS, body=None, headers={"content-type": "application/json"})
        world.exchanges.append(late)
        await asyncio.sleep(0)  # it has arrived
        assert (await world.post("/v1/sessions/turn/cancel")).status == 200
        late.body_arrives(json.dumps({"model": "b", "session_id": "turn"}).encode())
        await late.end()
        assert (late.status, late.json()["error"]["code"]) == (499, "explicit")
        assert world.starts("b") == 0
        assert (await world.complete("a", session_id="turn").end()).status == 200


@pytest.mark.parametrize("path", ["/v1/requests", "/v1/sessions"])
async def test_a_list_is_a_list_while_a_process_ends(tmp_path: Path, path: str) -> None:
    async with open_router(tmp_path, "a", "b") as world:
        for model in ("a", "b"):
            assert (await world.complete(model).end()).status == 200
        (tmp_path / "a.ends").touch()
        listed = await world.get(path)
        unreached = [{"replica": "a", "why": "did not answer"}]
        assert (listed.status, listed.json()) == (200, {"object": "list", "data": [], "unreached": unreached})
        assert listed.headers["x-unreached"] == "a"


async def test_a_stuck_process_gets_one_message_and_then_the_newest_of_each_key() -> None:
    asked = asyncio.Queue[Superseding]()
    answers = asyncio.Event()

    class Scripted(Front):
        async def ask(self, _process: Any, message: Any, *_: Any) -> Any:
            asked.put_nowait(message)
            await answers.wait()

    front = Scripted(None, list)
    newer = NewerRequests(front)
    process: Any = Path("stuck")  # anything that has a name
    newer.tell(News(owner="", key="editor", arrived_us=1, id="1"), [process])
    first = await asked.get()
    assert [one.id for one in first.news] == ["1"]
    for number in range(2, 1_000):
        newer.tell(News(owner="", key=f"key {number % 2}", arrived_us=number, id=str(number)), [process])
    assert asked.empty()
    answers.set()
    second = await asked.get()
    assert sorted(one.id for one in second.news) == ["998", "999"]
    newer.tell(News(owner="", key="editor", arrived_us=2_000, id="last"), [])  # the process has ended
    await newer.close()
    await front.close()
    assert asked.empty()
