"""Idle requests behind a front: processes of one machine share its cores."""

import pytest

from tests.front.world import RouterWorld

pytestmark = pytest.mark.anyio


async def test_idle_requests_of_all_processes_wait_while_others_are_there(world: RouterWorld) -> None:
    await world.complete("a").end()
    idle = await world.streaming("a", "idle", priority="idle")
    other = await world.streaming("b", "other")  # loads its model first
    await world.until(lambda: world.log_of("a").count("command wait") == 1)
    assert world.log_of("a").count("command go") == 0
    other.leave()
    await world.until(lambda: world.log_of("a").count("command go") == 1)
    assert world.log_of("b").count("command wait") == 0
    idle.leave()


async def test_an_idle_request_waits_until_others_have_its_model_loaded(world: RouterWorld) -> None:
    idle = await world.waiting("a", "idle", priority="idle")
    (listed,) = (await world.get("/v1/requests")).json()["data"]
    assert (listed["priority"], world.starts("a")) == ("idle", 0)
    assert (await world.complete("a").end()).status == 200
    assert (await idle.end()).status == 200
