"""``GET /models/sse``: the loads and ends of all models as events, in the form of llama-server's router."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi.responses import Response

from pyllmcancel.front.feed import seated
from pyllmcancel.front.model import State
from pyllmcancel.front.routes_models import shown_of, status_of
from pyllmcancel.server.answer_events import SSE_HEADERS
from pyllmcancel.server.dialect import PING
from pyllmcancel.server.live.response import until_left
from pyllmcancel.server.live.wording import as_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Receive, Scope, Send

    from pyllmcancel.front.keeper import Keeper
    from pyllmcancel.front.spec import Spec
    from pyllmcancel.shares import Shares

STAGE = "text_model"  # llama-server has more stages, of the files beside a model
Data = dict[str, Any]


class LlamaModelsFeed(Response):
    """The events of one reader: each change from its coming on.

    Parameters
    ----------
    seats
        Seats for readers, by the owners of their keys.
    ping_interval
        The seconds between two pings; 0: no pings.
    """

    def __init__(self, keeper: Keeper, *, seats: Shares, owner: str, ping_interval: float) -> None:
        super().__init__()
        self._keeper = keeper
        self._seats = seats
        self._owner = owner
        self._ping_interval = ping_interval

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with seated(self._seats, self._owner):
            await until_left(scope, receive, asyncio.create_task(self._send(send), name="send the models' events"))

    async def _send(self, send: Send) -> None:
        before = self._states()
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
        # The headers alone would not be sent: the reader has to know that it misses nothing from now on.
        await send({"type": "http.response.body", "body": PING, "more_body": True})
        while not self._keeper.closing:
            changed = self._keeper.next_change()  # before the states are read: writing them may take a while
            now = self._states()
            for event in events(before, now):
                await send({"type": "http.response.body", "body": b"data: %s\n\n" % as_json(event), "more_body": True})
            before = now
            try:
                async with asyncio.timeout(self._ping_interval or None):
                    await changed.wait()
            except TimeoutError:
                await send({"type": "http.response.body", "body": PING, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _states(self) -> dict[str, Data]:
        return {spec.name: self._state(spec) for spec in self._keeper.catalog.specs.values()}

    def _state(self, spec: Spec) -> Data:
        status = status_of(self._keeper, spec)
        told: Data = {"status": status["value"]}
        if (progress := status.get("progress")) is not None:
            told["progress"] = {"stages": [STAGE], "current": STAGE, "value": progress}
        if status["value"] == "unloaded":
            told["exit_code"] = int(shown_of(self._keeper, spec).state is State.FAILED)
        return told


def events(before: dict[str, Data], now: dict[str, Data]) -> Iterator[Data]:
    """Iterate over the events that lead from one list of states to the next."""
    for name in before.keys() - now.keys():
        yield {"model": name, "event": "model_remove"}
    if now.keys() - before.keys():
        yield {"model": "*", "event": "models_reload"}
    for name, data in now.items():
        old = before.get(name)
        if old is not None and data != old:
            begins = data["status"] == "loading" != old["status"]
            yield {"model": name, "event": "model_status" if begins else "status_change", "data": data}
