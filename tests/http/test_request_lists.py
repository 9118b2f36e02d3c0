"""``/v1/requests`` and ``/v1/steps``: what can be seen from outside."""

from __future__ import annotations

import pytest

from tests.support.http_world import World, open_world

FIELDS = {
    *("id", "object", "status", "phase", "owner", "session", "parent_session", "supersede", "priority", "n", "slots"),
    *("paused", "prompt_tokens", "prompt_tokens_done", "cached_tokens", "completion_tokens", "drafts", "lora"),
    *("max_tokens", "finish_reason", "cancel_reason", "superseded_by", "cancel_latency_ms", "error"),
    *("created", "seconds", "times"),
}


async def busy_world(world: World) -> None:
    """One of each kind, on one slot."""
    await world.complete(max_tokens=1, headers={"x-request-id": "finished"}).end()
    cancelled = await world.computing(headers={"x-request-id": "cancelled"})
    await world.post("/v1/requests/cancelled/cancel")
    await cancelled.end()
    await world.running_stream("running")
    world.complete(headers={"x-request-id": "waiting-1"})
    await world.submitted("waiting-2", headers={"x-session-id": "s"})


async def test_live_ones_come_first_in_their_order_then_the_ended_newest_first() -> None:
    async with open_world(parallel=1) as world:
        await busy_world(world)
        listed = await world.requests()
        assert [entry["id"] for entry in listed] == ["running", "waiting-1", "waiting-2", "cancelled", "finished"]
        assert [entry["status"] for entry in listed] == ["running", "waiting", "waiting", "cancelled", "finished"]
        assert all(set(entry) == FIELDS and entry["object"] == "request" for entry in listed)
        for status in ("running", "waiting", "cancelling", "cancelled", "finished", "error"):
            assert await world.requests(f"?status={status}") == [one for one in listed if one["status"] == status]


async def test_an_unknown_status_is_refused_with_its_name(world: World) -> None:
    assert (await world.get("/v1/requests?status=asleep")).refusal == (400, "status")


async def test_a_running_request_shows_its_progress(world: World) -> None:
    await world.computing(max_tokens=50, ignore_eos=True, headers={"x-request-id": "mine", "x-session-id": "s"})
    before = await world.request("mine")
    assert (before["status"], before["phase"], before["prompt_tokens_done"]) == ("running", "prefill", 0)
    await world.step(2)
    await world.held()
    now = await world.request("mine")
    assert (now["phase"], now["prompt_tokens"], now["prompt_tokens_done"]) == ("decode", 5, 5)
    assert (now["completion_tokens"], now["session"], now["n"]) == (2, "s", 1)
    assert len(now["slots"]) == 1
    assert now["seconds"] >= before["seconds"] > 0


async def test_an_ended_request_shows_its_ending(world: World) -> None:
    world.model.answers[b"hello"] = b"!"
    await world.complete(headers={"x-request-id": "mine"}).end()
    seen = await world.request("mine")
    assert (seen["status"], seen["finish_reason"], seen["slots"]) == ("finished", "stop", [])
    assert (seen["cancel_reason"], seen["cancel_latency_ms"], seen["error"]) == (None, None, None)


async def test_a_request_with_n_choices_is_one_entry() -> None:
    async with open_world(parallel=3) as world:
        await world.computing(n=3, max_tokens=9, ignore_eos=True, n_steps=2)
        (entry,) = await world.requests()
        assert (entry["n"], len(entry["slots"]), entry["prompt_tokens"]) == (3, 3, 5)


async def test_steps_tell_what_each_held_newest_first(world: World) -> None:
    exchange = await world.computing(max_tokens=3, ignore_eos=True, headers={"x-request-id": "mine"}, n_steps=2)
    await world.post("/v1/requests/mine/cancel")
    await exchange.end()
    listed = (await world.get("/v1/steps")).json()
    assert (listed["object"], listed["n_steps"]) == ("list", 3)
    assert [step["number"] for step in listed["data"]] == [3, 2, 1]
    assert [step["status"] for step in listed["data"]] == ["aborted", "ok", "ok"]
    assert [step["sequences"] for step in listed["data"]] == [
        [
            {
                "request": "mine",
                "choice": 0,
                "slot": 0,
                "phase": phase,
                "n_tokens": n,
                "n_drafted": 0,
                "n_accepted": 0,
                "max_tokens": 3,
                "n_generated": n_generated,
                "cancelled": n_generated == 2,
            }
        ]
        for phase, n, n_generated in (("decode", 1, 2), ("decode", 1, 1), ("prefill", 5, 0))
    ]
    assert [step["left"] for step in listed["data"]] == [["mine"], [], []]
    assert [step["threads"] for step in listed["data"]] == [1, 1, 1]
    last = (await world.get("/v1/steps?last=1")).json()
    assert [step["number"] for step in last["data"]] == [3]


@pytest.mark.parametrize("last", ["0", "1025", "x"])
async def test_a_number_of_steps_out_of_range_is_refused(world: World, last: str) -> None:
    assert (await world.get(f"/v1/steps?last={last}")).refusal == (400, "last")


async def test_the_steps_of_a_batch_show_where_each_request_stands_and_who_leaves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "pyllmcancel.engine")
    async with open_world(parallel=2) as world:
        world.hold()
        stays = await world.submitted("stays", "stays", max_tokens=5, ignore_eos=True)
        await world.step(1)
        leaves = await world.submitted("leaves", "leaves", max_tokens=9, ignore_eos=True)
        await world.step(3)
        await world.held()
        world.gate.move_on(0.99)
        leaves.leave()
        await world.cancelling("leaves")
        world.gate.open()
        await leaves.end()
        assert (await stays.end()).status == 200
        steps = (await world.get("/v1/steps")).json()["data"]
        (last,) = [step for step in steps if step["left"] == ["leaves"]]
        states = {part["request"]: part for part in last["sequences"]}
        assert (states["leaves"]["max_tokens"], states["leaves"]["cancelled"]) == (9, True)
        assert (states["stays"]["max_tokens"], states["stays"]["cancelled"]) == (5, False)
        later = [step for step in steps if step["number"] > last["number"]]
        assert all(part["request"] == "stays" for step in later for part in step["sequences"])
        assert later[0]["left"] == ["stays"]
        mine = [part["n_generated"] for step in steps for part in step["sequences"] if part["request"] == "stays"]
        assert sorted(set(mine)) == [0, 1, 2, 3, 4]
    lines = [record.message for record in caplog.records if record.message.startswith("step ")]
    assert len(lines) == len(steps)
    assert any("leaves decode 1, generated" in line and "of 9, cancelled" in line for line in lines)


async def test_no_further_step_contains_a_request_whose_answer_is_complete() -> None:
    """Three in one batch, of different lengths: each leaves in the step in which it ends."""
    async with open_world(parallel=3) as world:
        world.hold()
        lengths = {"short": 2, "middle": 4, "long": 6}
        exchanges = {
            name: world.complete(name, max_tokens=n, ignore_eos=True, headers={"x-request-id": name})
            for name, n in lengths.items()
        }
        for name in lengths:
            await world.added(name)
        world.gate.open()
        for exchange in exchanges.values():
            assert (await exchange.end()).status == 200
        steps = (await world.get("/v1/steps")).json()["data"]
        for name, n in lengths.items():
            assert sum(any(part["request"] == name for part in step["sequences"]) for step in steps) == n
