"""Questions to all models' processes are answered, whichever has ended or is stuck; and news for them are bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response

from pyllmcancel.router import routes_requests as routes
from pyllmcancel.router.newer import NewerRequests
from pyllmcancel.router.upstream import Broken
from pyllmcancel.server.fleet.messages import News, Superseding

pytestmark = pytest.mark.anyio

REQUEST: Any = None  # no process looks at it
ANSWER = (200, {"cancelled": 1}, Response())


@pytest.mark.parametrize("first", ["ended", "stuck"])
async def test_one_process_that_does_not_answer_hides_no_other(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [SimpleNamespace(socket=name, is_ready=True) for name in (first, "well")]
    keeper = SimpleNamespace(processes=dict(enumerate(processes)))
    router = SimpleNamespace(any_process=lambda: processes[0], keeper=keeper)

    async def told_by(socket: str, *_: object) -> Any:
        if socket == "ended":
            raise Broken("it has ended")
        if socket == "stuck":
            await asyncio.Event().wait()
        return ANSWER

    monkeypatch.setattr(routes, "router_of", lambda _: router)
    monkeypatch.setattr(routes, "told_by", told_by)
    monkeypatch.setattr(routes, "ASKING_SECONDS", 0.01)
    monkeypatch.setattr(routes, "PATIENCE", 0.5)
    assert await routes.told_everywhere(REQUEST) == [ANSWER]


async def test_a_stuck_process_gets_one_message_and_then_the_newest_of_each_key() -> None:
    asked = asyncio.Queue[Superseding]()
    answers = asyncio.Event()

    class Scripted:
        async def ask(self, _process: object, message: Superseding, _reply: object) -> None:
            asked.put_nowait(message)
            await answers.wait()

    newer = NewerRequests(Scripted())  # type: ignore[arg-type]
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
    assert asked.empty()
