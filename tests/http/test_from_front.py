"""A worker and its front: whom it believes, and what the front asks it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pyllmcancel.server import from_front
from pyllmcancel.server.config import ApiKey
from tests.http.test_responses_stored import create
from tests.support.http_world import World, open_world

KEY = {"x-worker-key": "the-key"}
MESSAGES = "/v1/worker"


def front(owner: str, *, is_admin: bool = False, sees_all: bool = False) -> dict[str, str]:
    """The headers of a front for a request of this owner."""
    return KEY | {"x-front-owner": f"{is_admin:d}{sees_all:d}{owner}"}


@asynccontextmanager
async def open_worker(**options: Any) -> AsyncIterator[World]:
    async with open_world(worker_key="the-key", **options) as world:
        yield world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_worker() as opened:
        yield opened


async def listed(world: World, headers: dict[str, str]) -> list[str]:
    return [one["id"] for one in (await world.get("/v1/requests", headers=headers)).json()["data"]]


async def ask(world: World, kind: str, request_id: str, **fields: Any) -> Any:
    answer = await world.post(MESSAGES, {"kind": kind, "owner": "ann", "id": request_id} | fields, headers=KEY)
    assert answer.status == 200
    return answer.json()


async def test_a_front_says_whose_a_request_is_and_what_its_sender_may_see(world: World) -> None:
    for owner in ("ann", "bob"):
        answer = await world.complete(headers=front(owner) | {"x-request-id": f"of-{owner}"}, max_tokens=1).end()
        assert answer.status == 200
    assert await listed(world, front("ann")) == ["of-ann"]
    assert sorted(await listed(world, front("root", is_admin=True, sees_all=True))) == ["of-ann", "of-bob"]
    for headers, status in ((front("ann"), 403), (front("ann", sees_all=True), 200)):
        assert (await world.get("/metrics", headers=headers)).status == status
        assert (await world.get("/v1/steps", headers=headers)).status == status


async def test_without_the_key_nobody_is_believed_and_only_clients_with_api_keys_are_served() -> None:
    forged = front("ann") | {"x-worker-key": "another", "x-front-link": "1", "x-arrived": "1.0"}
    async with open_worker() as world:
        assert (await world.get("/health")).json() == {"status": "ok", "waiting": 0, "running": 0}
        told = (await world.get("/health", headers=KEY)).json()
        assert set(told) == {"status", "waiting", "running", "slots", "now", "boot"}
        for headers in ({}, forged):
            assert (await world.complete(headers=headers).end()).status == 401
            assert (
                await world.post(MESSAGES, {"kind": "ask_part", "owner": "", "id": "x", "items": True}, headers=headers)
            ).status == 401
    async with open_worker(api_keys=(ApiKey("bob", "key-b"),)) as world:
        answer = await world.complete(headers=forged | {"authorization": "Bearer key-b", "x-request-id": "mine"}).end()
        assert "x-front-link" not in answer.headers
        assert await listed(world, front("bob")) == ["mine"]
        assert await listed(world, front("ann")) == []


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [
        ("GET", None, 405),
        ("POST", b"{", 400),
        ("POST", {"kind": "no"}, 400),
        ("POST", {"kind": "ask_part", "owner": "", "id": "x", "items": True, "more": 1}, 400),
        ("POST", {"kind": "have_part", "owner": "", "id": "x", "items": [{}], "missing": None}, 400),
        ("POST", {"kind": "have_part", "owner": "", "id": "x", "items": [], "missing": "x"}, 400),
        ("POST", b"x" * 100, 413),
    ],
)
async def test_what_is_no_message_is_refused(
    world: World, method: str, body: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_front, "MAX_BODY", 99)
    answer = await world.begin(method, MESSAGES, body, headers=KEY).end()
    assert answer.status == status
    assert "message" in answer.json()["error"]


async def test_a_part_of_a_conversation_is_handed_over_and_used_once() -> None:
    async with open_worker() as one, open_worker() as other:
        made = await create(one, "first", input="hello", headers=front("ann"))
        assert await ask(other, "ask_part", made["id"], items=True) == {"items": [], "missing": made["id"]}
        assert await ask(one, "ask_part", made["id"], items=False) == {"items": [], "missing": None}
        part = await ask(one, "ask_part", made["id"], items=True)
        assert len(part["items"]) == 2
        await ask(other, "have_part", made["id"], **part)
        after = {"previous_response_id": made["id"], "input": "and"}
        assert (await create(other, "second", headers=front("ann"), **after))["previous_response_id"] == made["id"]
        assert (await create(other, "third", 404, headers=front("ann"), **after))[
            "code"
        ] == "previous_response_not_found"


async def test_a_conversation_that_is_too_long_stays_where_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.server.responses.stored.MAX_TO_WORKERS", 10)
    made = await create(world, "first", input="hello", headers=front("ann"))
    message = {"kind": "ask_part", "owner": "ann", "id": made["id"], "items": True}
    assert (await world.post(MESSAGES, message, headers=KEY)).failure == (400, "elsewhere")
