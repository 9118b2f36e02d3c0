"""``GET /v1/events`` of several models: one feed for as long as its reader stays, whichever models come and go.

The models' processes know each other, so the feed of one of them has the events of all. When it ends, that of another
one follows. In between there are this process' own events: the states of all models, and the requests that wait here.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

from fastapi.responses import Response

from pyllmcancel.events import RequestStatus
from pyllmcancel.front.forwarding import Message, kept
from pyllmcancel.front.routes_models import entry_of
from pyllmcancel.front.spec import replica_of
from pyllmcancel.front.upstream import Broken, Exchange
from pyllmcancel.server.answer_events import SSE_HEADERS
from pyllmcancel.server.dialect import PING
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.live.response import until_left
from pyllmcancel.server.live.wording import as_json, frame
from pyllmcancel.server.requests.answers import request_entry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import Receive, Scope, Send

    from pyllmcancel.front.router import Router
    from pyllmcancel.shares import Shares

MODELS = "models"  # the type of this process' events
PAUSE = 0.1  # seconds between two of them
RETRY = 0.25  # seconds before a process is asked again
MAX_WAITING = 32  # requests in an event
ALWAYS_NEW = ("used_seconds_ago", "seconds")  # fields whose change is no news
RESUMES = ("last_event_id", "last-event-id")
BLANK = b"\n\n"
MAX_EVENT = 1 << 24  # bytes


@contextmanager
def seated(seats: Shares, owner: str) -> Iterator[None]:
    """Inside the block the owner's reader has a seat; ApiError if there is none."""
    if not seats.take(owner):
        message = "the feed has too many readers (--max-event-clients)"
        raise ApiError(503, message, "server_error", code="too_many_readers")
    try:
        yield
    finally:
        seats.give_back(owner)


class ModelsFeed(Response):
    """The feed of one reader.

    Parameters
    ----------
    message
        The reader's request, which the processes get.
    seats
        Seats for readers, by the owners of their keys; a reader without a seat is refused.
    seen
        The owner whose waiting requests are seen; None: everybody's.
    all_seen
        True if the reader sees what all owners do.
    ping_interval
        The seconds between two pings; 0: no pings.
    """

    def __init__(
        self,
        router: Router,
        message: Message,
        *,
        seats: Shares,
        owner: str,
        seen: str | None,
        all_seen: bool,
        ping_interval: float,
    ) -> None:
        super().__init__()
        self._router = router
        self._keeper = router.keeper
        self._message, types = without_models(message)
        self._tells_models = types is None or MODELS in types
        self._relays = types is None or bool(types - {MODELS})
        self._seats = seats
        self._owner = owner
        self._seen = seen
        self._all_seen = all_seen
        self._ping_interval = ping_interval
        self._sending = asyncio.Lock()  # events are written one after the other
        self._told: dict[str, Any] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with seated(self._seats, self._owner):
            await until_left(scope, receive, asyncio.create_task(self._send(send), name="send the models' feed"))

    async def _send(self, send: Send) -> None:
        first = await self._begun()
        try:
            if first is not None and await self._refused(first, send):
                return
            await self._send_all(first, send)
        finally:
            if first is not None:
                first.close()

    async def _refused(self, begun: Exchange, send: Send) -> bool:
        """Return whether the process refuses the reader, which then has its answer."""
        try:
            head = await begun.head()
            content = b"" if head.status == 200 else await begun.whole()
        except (Broken, OSError, ValueError):
            return False  # it ended meanwhile, and is found to have
        if head.status == 200:
            return False
        await send({"type": "http.response.start", "status": head.status, "headers": kept(head.headers)})
        await send({"type": "http.response.body", "body": content, "more_body": False})
        return True

    async def _send_all(self, first: Exchange | None, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
        tasks = [asyncio.create_task(self._keep_telling(send)), asyncio.create_task(self._relay_all(first, send))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    # -- the processes' events ----------------------------------------------------------------------------------------

    async def _begun(self) -> Exchange | None:
        """Return the feed of a process; None if there is none now."""
        process = await self._router.any_process() if self._relays else None
        if process is None:
            return None
        message = self._message
        with suppress(OSError):
            return await Exchange.begin(process.socket, message.method, message.target, message.headers, b"")
        return None

    async def _relay_all(self, found: Exchange | None, send: Send) -> None:
        """Send one process' feed after the other, until the end of this one."""
        changed = self._keeper.next_change()
        while True:
            if found is not None:
                with suppress(Broken, OSError, ValueError):
                    await self._relay(found, send)
                self._message = without_place(self._message)
            if self._keeper.closing:
                return
            if found is None:
                await changed.wait()
            else:
                await asyncio.sleep(RETRY)  # it may listen until its very end
            changed = self._keeper.next_change()
            found = await self._next()

    async def _next(self) -> Exchange | None:
        """Return another process' feed; None if it is none, or a refusal."""
        found = await self._begun()
        if found is None:
            return None
        relayed = False
        try:
            relayed = (await found.head()).status == 200
        except (Broken, OSError, ValueError):
            pass
        finally:  # also if the reader has left
            if not relayed:
                found.close()
        if relayed:
            return found
        await asyncio.sleep(RETRY)
        return None

    async def _relay(self, begun: Exchange, send: Send) -> None:
        try:
            await self._tell(send, begins=True)
            async for events in whole_events(begun.pieces()):
                await self._write(send, events)
        finally:
            begun.close()

    # -- this process' events -----------------------------------------------------------------------------------------

    async def _keep_telling(self, send: Send) -> None:
        while not self._keeper.closing:
            changed = self._keeper.next_change()  # before the states are read: writing them may take a while
            await self._tell(send)
            try:
                async with asyncio.timeout(self._ping_interval or None):
                    await changed.wait()
            except TimeoutError:
                await self._write(send, PING)
            await asyncio.sleep(PAUSE)

    async def _tell(self, send: Send, *, begins: bool = False) -> None:
        """Send the states, if they have changed, or the feed of a process begins."""
        if not self._tells_models:
            return
        event = self.event()
        told = without_news(event)
        if begins or told != self._told:
            self._told = told
            await self._write(send, frame(None, MODELS, as_json(event | ({"begins": True} if begins else {}))))

    def event(self) -> dict[str, Any]:
        specs = self._keeper.catalog.specs.values()
        entries = [{**entry_of(self._keeper, one, all_seen=self._all_seen), "replica": one.replica} for one in specs]
        waiting = [one for one in self._router.requests.coming(self._seen) if one.status is RequestStatus.LOADING]
        entries_of = (request_entry(one.summary()) for one in waiting[:MAX_WAITING])
        requests = [{**entry, "replica": replica_of(entry["model"] or "")} for entry in entries_of]
        return {"type": MODELS, "manages": self._all_seen, "models": entries, "requests": requests}

    async def _write(self, send: Send, body: bytes) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": body, "more_body": True})


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


def without_news(value: Any) -> Any:
    """Return the event without the fields whose change is no news."""
    if isinstance(value, dict):
        return {key: without_news(one) for key, one in value.items() if key not in ALWAYS_NEW}
    return [without_news(one) for one in value] if isinstance(value, list) else value


def without_models(message: Message) -> tuple[Message, frozenset[str] | None]:
    """Return the request as a process understands it, and the types of events that it asks for; None: all."""
    path, _, query = message.target.partition(b"?")
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    given = next((value for name, value in pairs if name == "types"), None)
    if given is None:
        return message, None
    types = frozenset(given.split(","))
    rest = [(name, ",".join(sorted(types - {MODELS})) if name == "types" else value) for name, value in pairs]
    target = path + b"?" + urlencode(rest).encode()
    return Message(message.method, target, message.headers, b""), types


def without_place(message: Message) -> Message:
    """Return a request for a feed from its beginning: a place in one process' feed means nothing to another."""
    path, _, query = message.target.partition(b"?")
    pairs = [pair for pair in parse_qsl(query.decode("latin-1"), keep_blank_values=True) if pair[0] not in RESUMES]
    headers = [pair for pair in message.headers if pair[0].decode("latin-1") not in RESUMES]
    return Message(message.method, path + (b"?" + urlencode(pairs).encode() if pairs else b""), headers, b"")
