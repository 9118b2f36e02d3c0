"""Which process gets a request: that of the model which it names, or any one for what all processes know."""

from __future__ import annotations

import asyncio
import math
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.router.cancels import Cancels
from pyllmcancel.router.forwarding import (
    Leaving,
    Message,
    NotReached,
    SendAgain,
    answered,
    exchange,
    milliseconds_since,
    process_ended,
    read_body,
)
from pyllmcancel.router.front import Front
from pyllmcancel.router.model import State
from pyllmcancel.router.newer import NewerRequests
from pyllmcancel.router.places import Claim, names_of
from pyllmcancel.router.routed import By, RoutedRequest, RoutedRequests
from pyllmcancel.router.spec import replica_of
from pyllmcancel.router.wishes import fields_of, wishes_of
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.fleet.messages import AskStream, News, StreamKnown
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.streams.routes import not_ready

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Receive, Scope, Send

    from pyllmcancel.router.keeper import Keeper
    from pyllmcancel.router.process import ModelProcess
    from pyllmcancel.router.spec import Spec
    from pyllmcancel.server.config import ServerConfig

# Paths that any process can answer for all, since they know each other.
SHARED = re.compile(
    r"/v1/(?:requests|sessions|stream|streams)(?:/|$)|/v1/responses/(?!input_tokens$|compact$)|/(?:docs|openapi\.json)$"
)
STREAMS = re.compile(r"/v1/stream(?:/(.*))?", re.DOTALL)  # only the process that has a stream can send it
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
        self.front = Front(keeper.key, keeper.ready)
        self.cancels = Cancels(self.requests, self.front)
        self.autoload = autoload
        self._max_waiting = config.engine.max_queue
        timeout = config.engine.request_timeout
        self._timeout = math.inf if timeout is None else timeout
        self._newer = NewerRequests(self.front)
        self._stream_keep = config.stream_keep

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            message = Message.of(scope, await read_body(receive))
            leaving = Leaving(scope, receive)
            with leaving.heard():
                if scope["method"] in ("GET", "DELETE") and (found := STREAMS.match(scope["path"])):
                    await self._to_stream(found[1], message, leaving, send)
                elif SHARED.match(scope["path"]):
                    await self.to_any(message, leaving, send)
                else:
                    await self._to_model(scope, message, leaving, send)
        except Exception as error:
            has_ended = isinstance(error, NotReached | SendAgain)
            await answered(scope, receive, send, process_ended() if has_ended else error)

    async def close(self) -> None:
        """End the messages to the processes. Idempotent."""
        await self._newer.close()
        await self.front.close()

    # -- one model ----------------------------------------------------------------------------------------------------

    async def _to_model(self, scope: Scope, message: Message, leaving: Leaving, send: Send) -> None:
        fields = await fields_of(message.body)
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        spec = await self.named(fields.get("model", next(iter(query.get("model", ())), None)))
        wishes = wishes_of(scope, fields, stream_keep=self._stream_keep)
        loads = one_of(query.get("autoload"), default=self.autoload) and scope["method"] == "POST"
        if not loads:
            serving = self.keeper.serving(spec)
            if serving is None:
                raise ApiError(400, f"the model {spec.name} is not loaded", param="model", code="model_not_loaded")
            if scope["method"] != "POST":
                await exchange(message, serving.socket, leaving, send)
                return
        routed = RoutedRequest(scope, spec.name, wishes)
        leaving.keep(wishes.keep_going if wishes.streams else 0.0)  # then the request outlives its connection
        leaving.on_answer = routed.answers
        claim = Claim(spec.name, routed.owner, names_of(routed.id, wishes), len(message.body))
        with self.requests.lists(routed):
            while (ended := await self._sent(routed, claim, message, leaving, send)) is not None:
                routed.comes_back()
                claim = claim._replace(avoids=claim.avoids | {ended.name})
                if not self.keeper.has_other(claim):
                    await self._waited(routed, ended.end(), leaving)
                    claim = claim._replace(avoids=frozenset())

    async def _sent(
        self, routed: RoutedRequest, claim: Claim, message: Message, leaving: Leaving, send: Send
    ) -> ModelProcess | None:
        """Answer as the model's process does; return the process if it was found to have ended instead."""
        ticket, future = self.keeper.want(claim)
        try:
            process, waited = await self._admitted(routed, future, leaving)
            routed.goes_to(process)
            extra = [] if waited is None else [(b"x-model-load-ms", waited)]
            try:
                with suppress(SendAgain):  # a process that has ended does not listen any more
                    await exchange(message, process.socket, leaving, send, extra)
                    return None
                await exchange(message, process.socket, leaving, send, extra)
            except NotReached:
                return process
            return None
        finally:
            self.keeper.drop(ticket, routed.wishes.keep_alive)

    async def _admitted(
        self, routed: RoutedRequest, future: asyncio.Future[ModelProcess], leaving: Leaving
    ) -> tuple[ModelProcess, bytes | None]:
        """Return the process, and the milliseconds that the request waited for it, if it did."""
        if not future.done():
            began = time.monotonic()
            return await self._waited(routed, future, leaving), milliseconds_since(began)
        self.requests.supersede(routed)
        with routed.awaits(future):
            return await future, None

    async def _waited(self, routed: RoutedRequest, future: asyncio.Future[Any], leaving: Leaving) -> Any:
        """Return what comes; until then the request is one of those that wait, and can be cancelled."""
        timeout = min(routed.wishes.timeout, self._timeout)
        timer = None
        try:
            with self.requests.waits(routed, self._max_waiting):
                self.requests.supersede(routed)
                with routed.awaits(future):
                    self._tell_of(routed)
                    if timeout < math.inf:
                        left = max(0.0, routed.arrived_at + timeout - time.monotonic())
                        timer = asyncio.get_running_loop().call_later(left, routed.cancel, CancelReason.DEADLINE)
                    return await leaving.until(future)
        finally:
            self.keeper.tell()
            if timer is not None:
                timer.cancel()

    def _tell_of(self, newer: RoutedRequest) -> None:
        """Tell the processes of a request that has a supersede key."""
        if (key := newer.wishes.key) is not None:
            news = News(owner=newer.owner, key=key, arrived_us=newer.rank.arrived_us, id=newer.id)
            self._newer.tell(news, self.keeper.ready())

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

    async def any_process(self) -> ModelProcess | None:
        """Return the process that has served for longest, and so knows all others, of those that are not stuck."""
        models = self.keeper.roster.models
        ready = [one for one in self.keeper.processes.values() if models[one.name].state is State.LOADED]
        return await self.front.first_answering(sorted(ready, key=lambda one: models[one.name].loaded_at))

    async def _to_stream(self, name: str | None, message: Message, leaving: Leaving, send: Send) -> None:
        """Send, or delete, a stream; its request may still wait for its model."""
        scope, owner = leaving.scope, owner_of(leaving.scope)
        if name is None:
            name = next(iter(parse_qs(scope.get("query_string", b"").decode("latin-1")).get("conv_id", ())), "")
        if not 0 < len(name) <= MAX_NAME:
            await self.to_any(message, leaving, send)  # it has the words for what is wrong
            return
        coming = [one for one in self.requests.named(owner, By.STREAM, name) if not one.is_known]  # to a process
        if scope["method"] == "GET":
            if coming:
                raise not_ready()
            if not self.keeper.ready():
                raise ApiError(404, "no model is loaded, so there is no stream", code="stream_not_found")
            process = await self._with_stream(scope, AskStream(owner=owner, id=name, delete=False))
            await exchange(message, process.socket, leaving, send)
            return
        await self.cancels.of(coming, wait=False)
        if self.keeper.ready():
            await self._with_stream(scope, AskStream(owner=owner, id=name, delete=True))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _with_stream(self, scope: Scope, message: AskStream) -> ModelProcess:
        """Ask for a stream; return the process that has it, or any other one that answers. ApiError if none does."""
        replies = await self.front.ask_all(message, StreamKnown)
        note_unreached(scope, [one for one, told in replies.items() if told is None])
        answering = sorted((not told.found, n) for n, told in enumerate(replies.values()) if told is not None)
        if not answering:
            raise unreached()
        return list(replies)[answering[0][1]]

    async def to_any(self, message: Message, leaving: Leaving, send: Send) -> None:
        process = await self.any_process()
        if process is None and self.keeper.ready():
            raise unreached()
        if process is None:
            raise ApiError(503, "no model is loaded", "server_error", code="no_model_loaded")
        await exchange(message, process.socket, leaving, send)


def note_unreached(scope: Scope, processes: Iterable[ModelProcess]) -> None:
    """Note for the answer the processes that did not answer in time."""
    told: dict[str, str] = scope["state"].setdefault("unreached", {})
    told.update({replica_of(one.name): "did not answer" for one in processes})


def unreached() -> ApiError:
    return ApiError(503, "the models' processes do not answer", "server_error", code="replica_unreached")


def one_of(values: list[str] | None, *, default: bool) -> bool:
    return default if not values else values[0].lower() in ("1", "true")


def unknown_model(name: str, known: list[str]) -> ApiError:
    shown = ", ".join(known[:MAX_SHOWN]) + (f" and {len(known) - MAX_SHOWN} more" if len(known) > MAX_SHOWN else "")
    message = f"there is no model {name[:100]!r}; there are: {shown}"
    return ApiError(404, message, param="model", code="model_not_found")
