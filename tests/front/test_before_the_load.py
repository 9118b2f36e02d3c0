"""Holds, superseding and deadlines, where the model is not loaded yet."""

from pathlib import Path
from typing import Any

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.front.replica import State
from tests.front.world import ADMIN, ANN, BOB, COMPLETIONS, KEYS, RouterWorld, open_router

pytestmark = pytest.mark.anyio


# -- holds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["post", "delete", "several"])
async def test_a_request_that_was_cancelled_before_it_came_loads_nothing(world: RouterWorld, way: str) -> None:
    match way:
        case "post":
            held = await world.post("/v1/requests/mine/cancel?hold=60")
        case "delete":
            held = await world.begin("DELETE", "/v1/requests/mine?hold=60").end()
        case _:
            held = await world.post("/v1/requests/cancel?hold=60", {"request_ids": ["mine"]})
    told = held.json()["data"][0] if way == "several" else held.json()
    assert held.status == (200 if way == "several" else 202)
    assert told == {"id": "mine", "outcome": "held", "hold_seconds": 60.0}
    assert (await world.complete("a", "mine").end()).failure == (499, "explicit")
    assert world.starts("a") == 0
    assert (await world.complete("a", "mine").end()).status == 200  # a hold is for one request


@pytest.mark.parametrize("name", ["chat", "turn"])
async def test_a_session_that_was_cancelled_before_it_came_loads_nothing(world: RouterWorld, name: str) -> None:
    held = await world.post(f"/v1/sessions/{name}/cancel?hold=60")
    assert held.status == 202
    assert held.json() == {"session": name, "descendants": True, "requests": [], "hold_seconds": 60.0}
    for _ in range(2):  # a session's hold is for all
        request = await world.complete("a", session_id="turn", parent_session_id="chat").end()
        assert request.failure == (499, "explicit")
    assert world.starts("a") == 0
    assert (await world.complete("a", session_id="another").end()).status == 200


async def test_a_parents_hold_without_descendants_does_not_reach_its_children(world: RouterWorld) -> None:
    await world.post("/v1/sessions/chat/cancel?hold=60&descendants=false")
    assert (await world.complete("a", session_id="turn", parent_session_id="chat").end()).status == 200
    assert (await world.complete("a", session_id="chat").end()).status == 499


async def test_a_hold_belongs_to_its_owner(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", **KEYS) as world:
        assert (await world.post("/v1/requests/mine/cancel?hold=60", headers=ANN)).status == 202
        assert (await world.post("/v1/requests/yours/cancel?hold=60", headers=ADMIN)).status == 400  # whose?
        assert (await world.post("/v1/requests/yours/cancel?hold=60&owner=bob", headers=ADMIN)).status == 202
        for headers, request_id, status in ((BOB, "mine", 200), (ANN, "mine", 499), (BOB, "yours", 499)):
            request = world.begin("POST", COMPLETIONS, {"model": "a"}, headers=headers | {"x-request-id": request_id})
            assert (await request.end()).status == status


@pytest.mark.parametrize("query", ["hold=61", "hold=soon", "hold=-1"])
async def test_a_hold_of_a_wrong_length_is_refused(world: RouterWorld, query: str) -> None:
    for path in ("/v1/requests/mine/cancel", "/v1/sessions/mine/cancel"):
        assert (await world.post(f"{path}?{query}")).refusal == (400, "hold")


# -- superseding and deadlines ----------------------------------------------------------------------------------------


async def test_a_request_that_waits_supersedes_what_other_models_compute(tmp_path: Path) -> None:
    async with open_router(tmp_path, "a", "b", loads=("b",)) as world:
        older = await world.streaming("a", "older", supersede="editor")
        world.complete("b", "newer", supersede="editor")
        assert "[DONE]" not in (await older.end()).events
        assert world.keeper.replica("b").state is State.LOADING


@pytest.mark.parametrize(("deadline", "status"), [("timeout", 504), ("queue_timeout", 503)])
@pytest.mark.parametrize("of", ["request", "server"])
async def test_a_deadline_passes_while_the_model_loads(tmp_path: Path, of: str, deadline: str, status: int) -> None:
    option = "request_timeout" if deadline == "timeout" else deadline
    servers: dict[str, Any] = {option: 0.01} if of == "server" else {}
    async with open_router(tmp_path, "a", engine=EngineConfig(**servers)) as world:
        world.hold_loads("a")
        late = await world.complete("a", **({deadline: 0.01} if of == "request" else {})).end()
        error = late.json()["error"]
        assert (late.status, error["code"], error["detail"]) == (status, "deadline", deadline)
        await world.until_state("a", State.UNLOADED)


async def test_the_place_in_the_line_for_a_model_is_told(world: RouterWorld) -> None:
    world.hold_loads("a")
    for name in ("first", "second"):
        world.complete("a", name)
        await world.waits(name)
    found = [(await world.get(f"/v1/requests/{name}")).json() for name in ("first", "second")]
    assert [(one["phase"], one["position"], one["seconds_ahead"]) for one in found] == [
        ("loading", 1, None),
        ("loading", 2, None),
    ]
