"""``GET /v1/events`` of several workers, and llama-server's ``GET /models/sse``.

The first is one feed for as long as its reader stays, whichever workers come and go. It consists of the workers' own
feeds, each from its beginning, and of the front's events: the states of all models, and the requests that wait here.
Its events have no ids: a reader that comes again begins anew.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.datastructures import QueryParams

from pyllmcancel.events import RequestStatus
from pyllmcancel.front.forwarding import ForwardedRequest
from pyllmcancel.front.replica import State
from pyllmcancel.front.routes import Entry, entry_of, router_of, shown_of, status_of
from pyllmcancel.front.spec import replica_of
from pyllmcancel.front.upstream import Broken
from pyllmcancel.server.answer_events import SSE_HEADERS
from pyllmcancel.server.dialect import PING
from pyllmcancel.server.http.connection import until_left
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.live.events import TYPES
from pyllmcancel.server.live.feed import too_many_readers
from pyllmcancel.server.live.routes import ReplicaName, Types, named_types, unknown_replica
from pyllmcancel.server.live.wording import as_json, frame
from pyllmcancel.server.requests.answers import request_entry
from pyllmcancel.server.requests.visible import See, may_see_all
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import Receive, Scope, Send

    from pyllmcancel.front.spec import Spec
    from pyllmcancel.front.worker import Worker
    from pyllmcancel.shares import Shares

STAGE = "text_model"  # of a load; llama-server has more stages, of the files beside a model
MODELS = "models"  # the type of the front's events
PAUSE = 0.1  # seconds between two of them
RETRY = 0.25  # seconds before a worker is asked again
MAX_WAITING = 32  # requests in an event
AGES = ("used_seconds_ago", "seconds")  # fields whose change is no news
OWN_FIELDS = ("types", "replica")  # of a query
IDS = re.compile(rb"^id: [^\n]*\n", re.MULTILINE)
BLANK = b"\n\n"
MAX_EVENT = 1 << 24  # bytes


router = APIRouter()


@router.get("/v1/events")
async def follow_events(request: Request, see: See, types: Types = None, replica: ReplicaName = None) -> Response:
    if replica is not None and all(one.replica != replica for one in router_of(request).keeper.ready()):
        raise unknown_replica()
    return ModelsFeed(request, named_types(types, (*TYPES, MODELS)), see.owner, replica)


@router.get("/models/sse")
async def follow_models(request: Request) -> Response:
    return LlamaModelsFeed(request, frozenset({MODELS}))


class ModelsFeed(Response):
    """The feed of one reader, of the front's events and the workers': those of these types, and of this replica. Of
    the requests that wait, those of the owner `seen` are seen. The reader needs a seat: ApiError without.
    """

    pause = PAUSE

    def __init__(
        self, request: Request, types: frozenset[str] | None, seen: str | None = None, replica: str | None = None
    ) -> None:
        super().__init__()
        self._router = router_of(request)
        self._keeper = self._router.keeper
        self._seats: Shares = request.app.state.seats
        self._owner = exchange_of(request.scope).owner
        self._ping_interval = state_of(request).config.sse_ping_interval
        self._message = ForwardedRequest.of(request.scope, b"")
        self._types, self._replica = types, replica
        self._seen, self._all_seen = seen, may_see_all(request)
        self._last_event: dict[str, Any] | None = None
        self._read: dict[Worker, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()  # events are written one after the other

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._seats.take(self._owner):
            raise too_many_readers()
        try:
            await until_left(scope, receive, asyncio.create_task(self._send(send), name="send the models' feed"))
        finally:
            self._seats.give_back(self._owner)

    async def _send(self, send: Send) -> None:
        """Send the news at once, and after each change of a state, until the keeper is closing."""
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
        try:
            while not self._keeper.closing:
                changed = self._keeper.next_change()  # before the states are read: writing them may take a while
                await self._write(send, self.news())
                self._read_all(send)
                await asyncio.sleep(self.pause)
                try:
                    async with asyncio.timeout(self._ping_interval or None):
                        await changed.wait()
                except TimeoutError:
                    await self._write(send, PING)
            ending = [task for worker, task in self._read.items() if worker.pid is not None]
            await asyncio.gather(*ending, return_exceptions=True)  # they end with their processes
        finally:
            for task in self._read.values():
                task.cancel()
            await asyncio.gather(*self._read.values(), return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, events: bytes) -> None:
        async with self._sending:
            if events:
                await send({"type": "http.response.body", "body": events, "more_body": True})

    # -- the workers' events ------------------------------------------------------------------------------------------

    def _read_all(self, send: Send) -> None:
        """Read the feeds of all workers that serve, each for as long as it does."""
        self._read = {one: task for one, task in self._read.items() if not task.done()}
        if self._types == frozenset({MODELS}):
            return
        for worker in self._keeper.ready():
            if worker not in self._read and self._replica in (None, worker.replica):
                self._read[worker] = asyncio.create_task(self._relay(worker, send), name=f"read {worker.name}'s feed")

    async def _relay(self, worker: Worker, send: Send) -> None:
        """Send the worker's feed, again and again from its beginning if it is cut."""
        while worker in self._keeper.ready():
            message = replace(self._message, target=self._target(worker))
            with suppress(Broken, OSError, ValueError), closing(await message.begin(worker.address)) as begun:
                if (await begun.head()).status == 200:
                    async for events in whole_events(begun.pieces()):
                        await self._write(send, IDS.sub(b"", events))
            await asyncio.sleep(RETRY)  # it may listen until its very end

    def _target(self, worker: Worker) -> bytes:
        path, _, query = self._message.target.partition(b"?")
        pairs = [pair for pair in QueryParams(query).multi_items() if pair[0] not in OWN_FIELDS]
        pairs.append(("replica", worker.replica))
        if self._types is not None:
            pairs.append(("types", ",".join(sorted(self._types - {MODELS}))))
        return path + b"?" + urlencode(pairs).encode()

    # -- the front's events -------------------------------------------------------------------------------------------

    def news(self) -> bytes:
        """Return the states, if they are asked for and have changed."""
        if self._types is not None and MODELS not in self._types:
            return b""
        event, before = self._event(), self._last_event
        self._last_event = without_ages(event)
        return b"" if self._last_event == before else frame(None, MODELS, as_json(event))

    def _event(self) -> dict[str, Any]:
        specs = self._keeper.catalog.specs.values()
        entries = [{**entry_of(self._keeper, one, all_seen=self._all_seen), "replica": one.replica} for one in specs]
        waiting = [one for one in self._router.requests.coming(self._seen) if one.status is RequestStatus.LOADING]
        entries_of = (request_entry(one.summary()) for one in waiting[:MAX_WAITING])
        requests = [{**entry, "replica": replica_of(entry["model"] or "")} for entry in entries_of]
        return {"type": MODELS, "manages": self._all_seen, "models": entries, "requests": requests}


async def whole_events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Iterate over the same bytes, cut only between two events; Broken for an event that is too long to keep."""
    rest = bytearray()
    async for piece in pieces:
        new = max(0, len(rest) - 1)  # a blank line may be cut, too
        rest += piece
        end = rest.rfind(BLANK, new) + len(BLANK)
        if end >= len(BLANK):
            yield bytes(rest[:end])
            del rest[:end]
        if len(rest) > MAX_EVENT:
            raise Broken


def without_ages(value: Any) -> Any:
    """Return the event without the fields whose change is no news."""
    if isinstance(value, dict):
        return {key: without_ages(one) for key, one in value.items() if key not in AGES}
    return [without_ages(one) for one in value] if isinstance(value, list) else value


# -- llama-server's events ---------------------------------------------------------------------------------------------


class LlamaModelsFeed(ModelsFeed):
    """The feed of one reader of llama-server's router: each change from its coming on."""

    pause = 0.0
    _before: dict[str, Entry] | None = None

    def news(self) -> bytes:
        before = self._before
        self._before = now = {name: self._state(one) for name, one in self._keeper.catalog.specs.items()}
        if before is None:  # the headers alone would not be sent: the reader has to know that it misses nothing now
            return PING
        return b"".join(b"data: %s\n\n" % as_json(one) for one in events(before, now))

    def _state(self, spec: Spec) -> Entry:
        shown = shown_of(self._keeper, spec)
        status = status_of(self._keeper, shown)
        told: Entry = {"status": status["value"]}
        if (progress := status.get("progress")) is not None:
            told["progress"] = {"stages": [STAGE], "current": STAGE, "value": progress}
        if status["value"] == "unloaded":
            told["exit_code"] = int(shown.state is State.FAILED)
        return told


def events(before: dict[str, Entry], now: dict[str, Entry]) -> Iterator[Entry]:
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
