"""A question to all models' processes is answered, whichever of them has ended or is stuck."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Response

from pyllmcancel.router import routes_requests as routes
from pyllmcancel.router.upstream import Broken

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
