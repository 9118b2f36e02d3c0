"""``/v1/requests`` and ``/v1/steps``: what can be seen from outside; and every response names its request."""

import json

import pytest

from tests.support.http_world import COMPLETIONS, World, open_world

AHEAD = {"position", "tokens_ahead", "seconds_ahead"}
FIELDS = {
    *("id", "object", "status", "phase", "owner", "session", "parent_session", "supersede", "priority", "n", "slots"),
    *("paused", "prompt_tokens", "prompt_tokens_done", "cached_tokens", "completion_tokens", "drafts", "lora"),
    *("max_tokens", "finish_reason", "cancel_reason", "superseded_by", "cancel_latency_ms", "error"),
    *("created", "seconds", "times"),
}


async def test_live_ones_come_first_in_their_order_then_the_ended_newest_first() -> None:
    """One of each kind, on one slot."""
    async with open_world(parallel=1) as world:
        await world.complete(max_tokens=1, headers={"x-request-id": "finished"}).end()
        cancelled = await world.computing(headers={"x-request-id": "cancelled"})
        await world.post("/v1/requests/cancelled/cancel")
        await cancelled.end()
        await world.running_stream("running")
        world.complete(headers={"x-request-id": "waiting-1"})
        await world.submitted("waiting-2", headers={"x-session-id": "s"})
        listed = await world.requests()
        assert [entry["id"] for entry in listed] == ["running", "waiting-1", "waiting-2", "cancelled", "finished"]
        assert [entry["status"] for entry in listed] == ["running", "waiting", "waiting", "cancelled", "finished"]
        for entry in listed:
            assert set(entry) == (FIELDS | AHEAD if entry["status"] == "waiting" else FIELDS)
            assert entry["object"] == "request"
        assert [entry.get("position") for entry in listed] == [None, 1, 2, None, None]
        first, second = (entry["tokens_ahead"] for entry in listed[1:3])
        assert 0 < first < second
        for status in ("running", "waiting", "cancelling", "cancelled", "finished", "error"):
            found = [entry["id"] for entry in await world.requests(f"?status={status}")]
            assert found == [entry["id"] for entry in listed if entry["status"] == status]


async def test_a_request_shows_its_progress_and_its_ending() -> None:
    async with open_world(parallel=3) as world:
        mine = {"x-request-id": "mine", "x-session-id": "s"}
        exchange = await world.computing(n=3, max_tokens=50, ignore_eos=True, headers=mine)
        before = await world.request("mine")
        assert (before["status"], before["phase"], before["prompt_tokens_done"]) == ("running", "prefill", 0)
        await world.step(3)
        await world.held()
        now = await world.request("mine")
        assert (now["phase"], now["prompt_tokens"], now["prompt_tokens_done"]) == ("decode", 5, 5)
        assert (now["completion_tokens"], now["session"], now["n"], len(now["slots"])) == (6, "s", 3, 3)
        assert now["seconds"] >= before["seconds"] > 0
        world.gate.open()
        await exchange.end()
        seen = await world.request("mine")
        assert (seen["status"], seen["finish_reason"], seen["slots"]) == ("finished", "length", [])
        assert (seen["cancel_reason"], seen["cancel_latency_ms"], seen["error"]) == (None, None, None)


async def test_steps_tell_what_each_held_newest_first(world: World) -> None:
    exchange = await world.computing(max_tokens=3, ignore_eos=True, headers={"x-request-id": "mine"}, n_steps=2)
    await world.post("/v1/requests/mine/cancel")
    await exchange.end()
    listed = (await world.get("/v1/steps")).json()
    assert (listed["object"], listed["n_steps"]) == ("list", 3)
    assert [step["number"] for step in listed["data"]] == [3, 2, 1]
    assert [step["status"] for step in listed["data"]] == ["aborted", "ok", "ok"]
    mine = {"request": "mine", "choice": 0, "slot": 0, "max_tokens": 3, "n_drafted": 0, "n_accepted": 0}
    assert [step["sequences"] for step in listed["data"]] == [
        [mine | {"phase": phase, "n_tokens": n, "n_generated": n_generated, "cancelled": n_generated == 2}]
        for phase, n, n_generated in (("decode", 1, 2), ("decode", 1, 1), ("prefill", 5, 0))
    ]
    assert [(step["left"], step["threads"]) for step in listed["data"]] == [(["mine"], 1), ([], 1), ([], 1)]
    last = (await world.get("/v1/steps?last=1")).json()
    assert [step["number"] for step in last["data"]] == [3]


async def test_the_steps_of_a_batch_show_where_each_request_is_and_who_leaves(caplog: pytest.LogCaptureFixture) -> None:
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


# -- ids of clients and of the server ----------------------------------------------------------------------------------


SANE = ["a", "req-1", "A.b_c:d@e/f+g=h-i", "7f9c0f3e-6a1b-4c7e-9a55-6d6f0d0e7a11", "x" * 128, "cmpl-of-mine", "a/b"]
INSANE = ["", " ", "a b", "x" * 129, 'a"b', "a\tb", "ä", "a;b", "../%00", "a,b"]


@pytest.mark.parametrize("request_id", SANE)
async def test_a_sane_id_is_taken_and_the_request_is_found_and_cancelled_by_it(world: World, request_id: str) -> None:
    exchange = await world.computing(headers={"x-request-id": request_id})
    assert (await world.request(request_id))["id"] == request_id
    answer = (await world.post(f"/v1/requests/{request_id}/cancel")).json()
    assert (answer["id"], answer["outcome"]) == (request_id, "cancelled")
    await exchange.end()
    assert exchange.headers["x-request-id"] == request_id
    assert exchange.json()["error"]["request_id"] == request_id


@pytest.mark.parametrize("request_id", INSANE)
async def test_an_insane_id_is_refused_and_not_repeated(world: World, request_id: str) -> None:
    exchange = await world.complete(headers={"x-request-id": request_id}).end()
    error = exchange.json()["error"]
    assert (exchange.status, error["param"], error["code"]) == (400, "X-Request-Id", "bad_id")
    assert exchange.headers["x-should-retry"] == "false"
    made = exchange.headers["x-request-id"]
    assert made.startswith("req-")
    assert error["request_id"] == made
    assert await world.requests() == []


@pytest.mark.parametrize("stream", [False, True])
async def test_the_id_of_a_live_request_is_refused_and_that_request_goes_on(world: World, stream: bool) -> None:
    first = await world.running_stream("mine")
    second = await world.complete(stream=stream, headers={"x-request-id": "mine"}).end()
    assert second.status == 400
    assert "mine" in second.json()["error"]["message"]
    world.gate.open()
    await first.end()
    assert first.events[-1] == "[DONE]"
    again = await world.complete(max_tokens=1, headers={"x-request-id": "mine"}).end()
    assert again.status == 200, "it is free when that has ended"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_made_id_is_in_the_header_in_the_answer_and_in_the_list(world: World, stream: bool) -> None:
    exchange = await world.complete(max_tokens=1, stream=stream).end()
    answer = json.loads(exchange.events[0]) if stream else exchange.json()
    made = exchange.headers["x-request-id"]
    assert answer["id"] == f"cmpl-{made}"
    assert [entry["id"] for entry in await world.requests()] == [made]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", path, 200) for path in ("/health", "/metrics", "/v1/models", "/v1/requests")),
        *(("GET", path, 404) for path in ("/v1/requests/unknown", "/nowhere")),
        *(("POST", f"/v1/{kind}/unknown/cancel", 404) for kind in ("requests", "sessions")),
        *((method, COMPLETIONS, status) for method, status in (("POST", 400), ("GET", 405))),
    ],
)
async def test_every_response_has_the_id(world: World, method: str, path: str, status: int) -> None:
    exchange = await world.begin(method, path, headers={"x-request-id": "mine"}).end()
    assert exchange.status == status
    assert exchange.headers["x-request-id"] == "mine"
    if status >= 400:
        assert exchange.json()["error"]["request_id"] == "mine"
        assert exchange.headers["x-should-retry"] == "false"


async def test_a_defect_of_ours_is_a_500_with_the_id_and_without_its_inside(world: World) -> None:

    async def broken() -> None:
        raise ZeroDivisionError("a secret")

    world.app.add_api_route("/broken", broken)
    exchange = world.begin("GET", "/broken", headers={"x-request-id": "mine"})
    with pytest.raises(ZeroDivisionError):  # for the server's log
        await exchange.end()
    assert (exchange.status, exchange.headers["x-should-retry"]) == (500, "false")
    assert exchange.headers["x-request-id"] == exchange.json()["error"]["request_id"] == "mine"
    assert b"secret" not in exchange.body
