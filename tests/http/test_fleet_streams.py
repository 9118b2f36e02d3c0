"""Streams that can be taken up again, over replicas."""

from __future__ import annotations

import pytest

from pyllmcancel.server.config import ApiKey
from tests.http.test_streams import NAME, ask, delete, found, read, unread, written
from tests.support.fleet import open_fleet

pytestmark = pytest.mark.anyio

ANN, BOB = {"authorization": "Bearer ann's"}, {"authorization": "Bearer bob's"}


async def test_a_stream_on_another_server_is_found_and_only_sent_there() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        first = await ask(b).end()
        assert await written(b) == first.body
        assert net.asked == []
        for name in (NAME, "mine"):
            refused = await read(a, name).end()
            assert (refused.status, refused.json()["error"]["code"]) == (400, "elsewhere")
        assert (await read(a, "unknown").end()).status == 404


async def test_a_stream_is_deleted_from_any_server() -> None:
    async with open_fleet("a", "b") as (_, (a, b)):
        await unread(b)
        assert await delete(a) == 204
        b.gate.open()
        assert (await b.ended("mine"))["cancel_reason"] == "explicit"
        assert (await read(b).end()).status == 404


async def test_an_owner_does_not_reach_anothers_stream_on_another_server() -> None:
    keys = (ApiKey("ann", "ann's"), ApiKey("bob", "bob's"))
    async with open_fleet("a", "b", api_keys=keys) as (_, (a, b)):
        first = await ask(b, headers=ANN).end()
        assert (await read(a, headers=BOB).end()).status == 404
        assert await delete(a, headers=BOB) == 204
        assert (await read(b, headers=ANN).end()).body == first.body


async def test_a_newer_stream_of_the_conversation_on_another_server_supersedes_the_older() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        await unread(b)
        older = found(b)
        newer = await ask(a, "newer").end()
        await net.deliver(2)
        b.gate.open()
        ended = await b.ended("mine")
        assert (ended["cancel_reason"], ended["superseded_by"]) == ("superseded", "newer")
        assert await written(a) == newer.body
        while not older.log.ended:
            await older.log.changed.wait()
        elsewhere = await read(b).end()
        assert (elsewhere.status, elsewhere.json()["error"]["code"]) == (400, "elsewhere")


async def test_servers_that_do_not_answer_are_named() -> None:
    async with open_fleet("a", "b") as (net, (a, b)):
        await ask(b).end()
        net.silent.add("b")
        missing = await read(a).end()
        assert missing.status == 404
        assert "b" in missing.headers["x-unreached"]
