"""Simultaneous questions to a peer are bounded for each owner, so that a flood of questions keeps nothing else from
it.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pyllmcancel import __version__
from pyllmcancel.server.fleet.addresses import Address, FleetSettings
from pyllmcancel.server.fleet.discovery import Named
from pyllmcancel.server.fleet.http_transport import HttpTransport
from pyllmcancel.server.fleet.identity import Identity
from pyllmcancel.server.fleet.messages import Cancel, ListRequests, News
from pyllmcancel.server.fleet.peer import Peer, Standing
from pyllmcancel.server.fleet.slots import MAX_AT_ONCE, PeerSlots
from tests.support.http_asgi import LIMIT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


def identity(name: str) -> Identity:
    return Identity(nonce=name * 16, name=name, version=__version__, model="m", clock_us=0)


class Busy:
    """A peer that answers lists for ann when a test says so, and all else at once. `asked` are their owners."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.asked: list[str] = []
        self.told = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        reply: dict[str, Any] = {"data": []}
        match json.loads(request.content)["message"]:
            case {"kind": "superseding"}:
                reply = {"newer": []}
                self.told.set()
            case {"kind": "cancel"}:
                reply = {"live": {}, "ended": {}}
            case {"owner": owner}:
                self.asked.append(owner)
                if owner == "ann":
                    await self.answers.wait()
        return httpx.Response(200, json={"sender": identity("b").model_dump(), "reply": reply})


@asynccontextmanager
async def transport_to(busy: Busy, deadline: float) -> AsyncIterator[HttpTransport]:
    settings = FleetSettings(peers=(Address("http", "b", 1),), name="a")
    made = HttpTransport(
        Named(settings, LIMIT), lambda: identity("a"), deadline=deadline, carrier=httpx.MockTransport(busy)
    )
    made.start(lambda _: None)
    await asyncio.sleep(0)  # now it knows where to look
    try:
        await asyncio.gather(*(line.peer.met.wait() for line in made._lines.values()))
        yield made
    finally:
        await made.close()


async def test_a_flood_of_one_owner_keeps_neither_others_nor_news_nor_cancels_from_a_peer() -> None:
    busy = Busy()
    async with asyncio.timeout(LIMIT), transport_to(busy, deadline=LIMIT) as made:
        flood = [asyncio.create_task(made.ask_all(ListRequests(owner="ann"))) for _ in range(3 * MAX_AT_ONCE)]
        (answer,) = await made.ask_all(ListRequests(owner="bob"))
        assert answer.error is None
        made.tell_all(News(owner="ann", key="k", arrived_us=1, id="r"))
        await busy.told.wait()
        (answer,) = await made.ask_all(Cancel(owner="ann", ids=["r"], wait=True))
        assert answer.error is None
        assert sorted(busy.asked) == ["ann"] * MAX_AT_ONCE + ["bob"]
        busy.answers.set()
        assert {answer.error for answers in await asyncio.gather(*flood) for answer in answers} == {None}


async def test_a_question_that_gets_no_turn_says_so_and_one_that_hangs_is_not_waited_for_by_those_behind_it() -> None:
    busy = Busy()
    async with asyncio.timeout(LIMIT), transport_to(busy, deadline=LIMIT) as made:
        for line in made._lines.values():
            line.peer._deadline = 0.05
        answers = await asyncio.gather(*(made.ask_all(ListRequests(owner="ann")) for _ in range(3 * MAX_AT_ONCE)))
        whys = {answer.error for some in answers for answer in some}
        assert whys <= {"does not answer in 0.05 s", "is asked too many questions at once"}
        assert len(busy.asked) == MAX_AT_ONCE


async def test_a_turn_and_an_answer_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, allowed = Busy(), list[float | None]()
    whole = Peer._exchange

    async def exchange(peer: Peer, message: Any, patience: float | None = None) -> Any:
        allowed.append(patience)
        return await whole(peer, message, patience)

    async with asyncio.timeout(LIMIT), transport_to(busy, deadline=LIMIT) as made:
        monkeypatch.setattr(Peer, "_exchange", exchange)
        flood = [asyncio.create_task(made.ask_all(ListRequests(owner="ann"))) for _ in range(2 * MAX_AT_ONCE)]
        while len(busy.asked) < MAX_AT_ONCE:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        busy.answers.set()
        await asyncio.gather(*flood)
        given = [patience for patience in allowed if patience is not None]
        assert len(given) == 2 * MAX_AT_ONCE
        assert max(given[MAX_AT_ONCE:]) < max(given[:MAX_AT_ONCE]) <= LIMIT  # less what they waited for their turn


async def test_one_that_had_hardly_any_time_to_answer_is_not_silent_for_that() -> None:
    busy = Busy()
    async with asyncio.timeout(LIMIT), transport_to(busy, deadline=LIMIT) as made:
        (line,) = made._lines.values()
        answer = await line.peer._ask(ListRequests(owner="ann"), patience=0.01)
        assert answer.error == "is asked too many questions at once"
        assert line.peer.standing is Standing.READY


async def test_what_nobody_waits_for_is_forgotten() -> None:
    turns = PeerSlots()
    async with turns.of("ann", LIMIT), turns.of("bob", LIMIT):
        assert len(turns) == 2
    for _ in range(MAX_AT_ONCE + 1):
        async with turns.of("ann", LIMIT):
            assert len(turns) == 1
    assert len(turns) == 0
