"""``GET /models/sse``: the loads and ends of all models as events, in the form of llama-server's router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyllmcancel.front.feed import StateFeed
from pyllmcancel.front.model import State
from pyllmcancel.front.routes_models import shown_of, status_of
from pyllmcancel.server.dialect import PING
from pyllmcancel.server.live.wording import as_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import Send

    from pyllmcancel.front.spec import Spec

STAGE = "text_model"  # llama-server has more stages, of the files beside a model
Data = dict[str, Any]


class LlamaModelsFeed(StateFeed):
    """The events of one reader: each change from its coming on."""

    async def _write_events(self, send: Send) -> None:
        before = self._states()
        # The headers alone would not be sent: the reader has to know that it misses nothing from now on.
        await self._write(send, PING)
        async for _ in self._changes(send):
            now = self._states()
            for event in events(before, now):
                await self._write(send, b"data: %s\n\n" % as_json(event))
            before = now

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
