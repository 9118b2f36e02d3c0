"""Every response names its request, every error in its body too, for ids of clients and of the server."""

from __future__ import annotations

import json

import pytest

from tests.support.http_world import COMPLETIONS, World

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


async def test_the_id_of_an_ended_request_can_be_used_again(world: World) -> None:
    for _ in range(2):
        exchange = await world.complete(max_tokens=1, headers={"x-request-id": "mine"}).end()
        assert exchange.status == 200


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
        ("GET", "/health", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/requests", 200),
        ("GET", "/v1/requests/unknown", 404),
        ("POST", "/v1/requests/unknown/cancel", 404),
        ("POST", "/v1/sessions/unknown/cancel", 404),
        ("POST", COMPLETIONS, 400),
        ("GET", COMPLETIONS, 405),
        ("GET", "/nowhere", 404),
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
    assert exchange.status == 500
    assert exchange.headers["x-request-id"] == "mine"
    assert exchange.headers["x-should-retry"] == "false"
    assert exchange.json()["error"]["request_id"] == "mine"
    assert b"secret" not in exchange.body
