"""Which process gets a request: that of the model which it names, or any one for what all processes know."""

from __future__ import annotations

import asyncio
import math
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import RequestCancelled
from pyllmcancel.router.body_fields import scalars
from pyllmcancel.router.cancels import Cancels
from pyllmcancel.router.forwarding import (
    Leaving,
    Message,
    NotReached,
    answered,
    exchange,
    header,
    milliseconds_since,
    process_ended,
    read_body,
)
from pyllmcancel.router.front import Front
from pyllmcancel.router.newer import NewerRequests
from pyllmcancel.router.roster import State
from pyllmcancel.router.routed import NOTHING, RoutedRequest, RoutedRequests
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.fleet.messages import News
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.http.request_context import arrival_of, request_id_of
from pyllmcancel.server.limits import INLINE_BODY
from pyllmcancel.server.origin import (
    CONVERSATION_HEADERS,
    KEY_FIELDS,
    KEY_HEADERS,
    PARENT_FIELDS,
    PARENT_HEADERS,
    SESSION_FIELDS,
    SESSION_HEADERS,
    is_name,
)
from pyllmcancel.server.streams.kept import conversation_key
from pyllmcancel.server.streams.routes import not_ready
from pyllmcancel.server.wire.fields import MAX_TIMEOUT

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from pyllmcancel.router.keeper import Keeper
    from pyllmcancel.router.process import ModelProcess
    from pyllmcancel.router.spec import Spec
    from pyllmcancel.server.config import ServerConfig

OWN_FIELDS = ("model", "keep_alive", "keep_going", "stream", "timeout")
WANTED = frozenset((*OWN_FIELDS, *SESSION_FIELDS, *PARENT_FIELDS, *KEY_FIELDS))
# Paths that any process can answer for all, since they know each other.
SHARED = re.compile(
    r"/v1/(?:requests|sessions|stream|streams)(?:/|$)|/v1/responses/(?!input_tokens$|compact$)|/(?:docs|openapi\.json)$"
)
STREAMS = re.compile(r"/v1/stream(?:/(.*))?", re.DOTALL)  # only the process that has a stream can send it
NOT_THERE = (b"stream_not_found", b"elsewhere")  # codes of the others' errors
DURATION = re.compile(r"(-?\d+(?:\.\d+)?)(ms|s|m|h)?")
UNITS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_SHOWN = 20  # names in an error


class Router:
    """The ASGI application behind the routes of this process. Used in the event loop only.

    Parameters
    ----------
    config
        The settings of the server. As many requests of one owner may wait for loads as in one model's queue.
    autoload
        True if a request loads its model.
    """

    def __init__(self, keeper: Keeper, config: ServerConfig, *, autoload: bool) -> None:
        self.keeper = keeper
        self.requests = RoutedRequests()
        self.front = Front(keeper.key)
        self.cancels = Cancels(self.requests, self.front)
        self.autoload = autoload
        self._max_waiting = config.engine.max_queue
        timeout = config.engine.request_timeout
        self._timeout = math.inf if timeout is None else timeout
        self._newer = NewerRequests(self.front)
        self._keeps_streams = config.stream_keep > 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            message = Message.of(scope, await read_body(receive))
            leaving = Leaving(scope, receive)
            with leaving.heard():
                if scope["method"] in ("GET", "DELETE") and (found := STREAMS.match(scope["path"])):
                    await self._to_stream(scope, found[1], leaving, send)
                elif SHARED.match(scope["path"]):
                    await self.to_any(message, leaving, send)
                else:
                    await self._to_model(scope, message, leaving, send)
        except Exception as error:
            await answered(scope, receive, send, process_ended() if isinstance(error, NotReached) else error)

    async def close(self) -> None:
        """End the messages to the processes. Idempotent."""
        await self._newer.close()
        await self.cancels.close()

    # -- one model ----------------------------------------------------------------------------------------------------

    async def _to_model(self, scope: Scope, message: Message, leaving: Leaving, send: Send) -> None:
        fields = await fields_of(message.body)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        spec = await self.named(fields.get("model", next(iter(query.get("model", ())), None)))
        names = self._wished(scope, fields)
        loads = one_of(query.get("autoload"), default=self.autoload) and scope["method"] == "POST"
        if not loads and self.keeper.model(spec.name).state is not State.LOADED:
            raise ApiError(400, f"the model {spec.name} is not loaded", param="model", code="model_not_loaded")
        if scope["method"] != "POST":
            process = self.keeper.processes[spec.name]
            await exchange(message, process.socket, leaving, send)
            return
        leaving.keeps = bool(names.streams)  # then the request outlives its connection
        routed = RoutedRequest(
            scope,
            spec.name,
            session=names.session,
            parent=names.parent,
            supersede=names.key,
            streams=names.streams,
        )
        leaving.on_answer = routed.answers
        self._check_held(scope, names)
        with self.requests.lists(routed):
            ended = await self._sent(names, routed, message, leaving, send)
            while ended is not None:
                routed.comes_back()
                await self._waited(names, routed, ended.end(), leaving)
                ended = await self._sent(names, routed, message, leaving, send)

    def _check_held(self, scope: Scope, names: Wished) -> None:
        """Raise RequestCancelled if the request was cancelled before it came."""
        lineage = [name for name in (names.session, names.parent) if name is not None]
        if self.requests.holds.reach(owner_of(scope), request_id_of(scope), arrival_of(scope), lineage):
            raise RequestCancelled(CancelReason.EXPLICIT, NOTHING)

    async def _sent(
        self, names: Wished, routed: RoutedRequest, message: Message, leaving: Leaving, send: Send
    ) -> ModelProcess | None:
        """Answer as the model's process does; return the process if it was found to have ended instead."""
        ticket, future = self.keeper.want(routed.model)
        try:
            process, waited = await self._admitted(names, routed, future, leaving)
            routed.goes_to(process)
            extra = [] if waited is None else [(b"x-model-load-ms", waited)]
            try:
                await exchange(message, process.socket, leaving, send, extra)
            except NotReached:
                return process
            return None
        finally:
            self.keeper.drop(ticket, names.keep_alive)

    async def _admitted(
        self, names: Wished, routed: RoutedRequest, future: asyncio.Future[ModelProcess], leaving: Leaving
    ) -> tuple[ModelProcess, bytes | None]:
        """Return the process, and the milliseconds that the request waited for it, if it did."""
        if not future.done():
            began = time.monotonic()
            return await self._waited(names, routed, future, leaving), milliseconds_since(began)
        self.requests.supersede(routed)
        with routed.awaits(future):
            return await future, None

    async def _waited(self, names: Wished, routed: RoutedRequest, future: asyncio.Future[Any], leaving: Leaving) -> Any:
        """Return what comes; until then the request is one of those that wait, and can be cancelled."""
        self.requests.check_may_wait(routed, self._max_waiting)
        self.requests.supersede(routed)
        timeout = min(names.timeout, self._timeout)
        timer = None
        try:
            with routed.awaits(future):
                if routed.supersede is not None:
                    self._tell_of(routed, routed.supersede)
                if timeout < math.inf:
                    left = max(0.0, routed.arrived_at + timeout - time.monotonic())
                    timer = asyncio.get_running_loop().call_later(left, routed.cancel, CancelReason.DEADLINE)
                return await leaving.until(future)
        finally:
            self.keeper.tell()
            if timer is not None:
                timer.cancel()

    def _tell_of(self, newer: RoutedRequest, key: str) -> None:
        """Tell the processes of a request with this supersede key."""
        news = News(owner=newer.owner, key=key, arrived_us=newer.rank.arrived_us, id=newer.id)
        self._newer.tell(news, [one for one in self.keeper.processes.values() if one.is_ready])

    def _wished(self, scope: Scope, fields: dict[str, Any]) -> Wished:
        """Return the groups that are named. A name of a wrong form counts as missing, since a process refuses it."""
        key = name_of(scope, fields, KEY_HEADERS, KEY_FIELDS)
        streams: tuple[str, ...] = ()
        if self._keeps_streams and fields.get("stream") is True:
            conversation = name_of(scope, fields, CONVERSATION_HEADERS, ())
            if conversation is not None:
                key = key or conversation_key(conversation)
                streams = (conversation, request_id_of(scope))
            elif fields.get("keep_going"):
                streams = (request_id_of(scope),)
        session = name_of(scope, fields, SESSION_HEADERS, SESSION_FIELDS)
        parent = name_of(scope, fields, PARENT_HEADERS, PARENT_FIELDS)
        return Wished(session, parent, key, streams, seconds_in(fields), keep_alive(fields.get("keep_alive")))

    async def named(self, name: Any) -> Spec:
        """Return the model of this name, or the default; ApiError if there is none."""
        if name is None or name == "":
            spec = self.keeper.catalog.default
            if spec is None:
                raise ApiError(404, "there is no model", param="model", code="model_not_found")
            return spec
        if not isinstance(name, str):
            raise ApiError(400, "model must be a text", param="model", code="invalid_request")
        found = self.keeper.catalog.find(name)
        if found is None:
            await self.keeper.reread()  # it may have come since
            found = self.keeper.catalog.find(name)
        if found is None:
            raise unknown_model(name, list(self.keeper.catalog.specs))
        return found

    # -- all models ---------------------------------------------------------------------------------------------------

    def any_process(self) -> ModelProcess | None:
        """Return the process that has served for longest, and so knows all others."""
        models = self.keeper.roster.models
        ready = [one for one in self.keeper.processes.values() if models[one.name].state is State.LOADED]
        return min(ready, key=lambda one: models[one.name].loaded_at, default=None)

    async def _to_stream(self, scope: Scope, name: str | None, leaving: Leaving, send: Send) -> None:
        """Send, or delete, a stream; its request may still wait for its model."""
        if name is None:
            name = next(iter(parse_qs(scope.get("query_string", b"").decode("latin-1")).get("conv_id", ())), "")
        coming = self.requests.with_stream(owner_of(scope), name)
        if scope["method"] == "GET":
            if coming:
                raise not_ready()
            await self._to_whoever_has_it(scope, leaving, send)
            return
        await self.cancels.cancel_all(coming, wait=False)
        if self.any_process() is not None:
            await self.to_any(Message.of(scope, b""), leaving, send)
            return
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _to_whoever_has_it(self, scope: Scope, leaving: Leaving, send: Send) -> None:
        """Ask one process after the other; the last one's answer is sent in any case."""
        asked = [one for one in self.keeper.processes.values() if one.is_ready]
        if not asked:
            raise ApiError(404, "no model is loaded, so there is no stream", code="stream_not_found")
        for process in asked:
            declines = NOT_THERE if process is not asked[-1] else ()
            with suppress(NotReached):
                if await exchange(Message.of(scope, b""), process.socket, leaving, send, declines=declines):
                    return
        raise process_ended()

    async def to_any(self, message: Message, leaving: Leaving, send: Send) -> None:
        process = self.any_process()
        if process is None:
            raise ApiError(503, "no model is loaded", "server_error", code="no_model_loaded")
        await exchange(message, process.socket, leaving, send)


async def fields_of(body: bytes) -> dict[str, Any]:
    if len(body) <= INLINE_BODY:
        return scalars(body, WANTED)
    return await asyncio.to_thread(scalars, body, WANTED)


class Wished(NamedTuple):
    """The groups that a request belongs to while it waits here, and its times in seconds, all as the request says."""

    session: str | None
    parent: str | None
    key: str | None
    streams: tuple[str, ...]
    timeout: float
    keep_alive: float | None


def seconds_in(fields: dict[str, Any]) -> float:
    """Return the request's own deadline; a value of a wrong form counts as missing, since a process refuses it. The
    values of a form are texts.
    """
    value = fields.get("timeout")
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT:
        return float(value)
    return math.inf


def name_of(scope: Scope, fields: dict[str, Any], headers: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    given = header(scope, *headers)
    if given is None:
        given = next((fields[name] for name in names if isinstance(fields.get(name), str)), None)
    return given if given is not None and is_name(given) else None


def one_of(values: list[str] | None, *, default: bool) -> bool:
    return default if not values else values[0].lower() in ("1", "true")


def keep_alive(value: Any) -> float | None:
    """Return the seconds of Ollama's field: a number, or a duration such as ``5m``; negative: for ever."""
    if value is None:
        return None
    found = DURATION.fullmatch(str(value).strip()) if isinstance(value, int | float | str) else None
    if found is None or isinstance(value, bool):
        message = "keep_alive must be seconds, or a duration such as 30s, 5m or 1h; negative: for ever"
        raise ApiError(400, message, param="keep_alive", code="invalid_request")
    seconds = float(found[1]) * UNITS[found[2]]
    return math.inf if seconds < 0 else seconds


def unknown_model(name: str, known: list[str]) -> ApiError:
    shown = ", ".join(known[:MAX_SHOWN]) + (f" and {len(known) - MAX_SHOWN} more" if len(known) > MAX_SHOWN else "")
    message = f"there is no model {name[:100]!r}; there are: {shown}"
    return ApiError(404, message, param="model", code="model_not_found")
