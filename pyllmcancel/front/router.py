"""Which process gets a request: that of the model which it names, or any one for what all processes know."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import Request
from starlette.datastructures import QueryParams
from starlette.responses import JSONResponse

from pyllmcancel import __version__
from pyllmcancel.cancellation import Deadline
from pyllmcancel.errors import InvalidRequestError, RequestCancelled
from pyllmcancel.front.everywhere import bring, exchange_with_each
from pyllmcancel.front.forwarding import ClientAnswer, ForwardedRequest, Lost, RelayedAnswer
from pyllmcancel.front.places import names_of
from pyllmcancel.front.preferences import fields_of, seconds_in, take_preferences
from pyllmcancel.front.relay import Relay
from pyllmcancel.front.replica import Claim
from pyllmcancel.front.requests import FrontRequest, FrontRequests
from pyllmcancel.requests.request import IDLE
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.from_front import body_of
from pyllmcancel.server.http.connection import connection_of, until_left, watched
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.http.workers import ClientLeft
from pyllmcancel.server.limits import MAX_STREAMS, SMALL_BODY
from pyllmcancel.server.origin import plain_origin, priority_of
from pyllmcancel.server.streams.kept import KeptAnswer
from pyllmcancel.server.streams.kept_answers import KeptAnswers
from pyllmcancel.server.streams.routes import not_ready
from pyllmcancel.shares import Remembered, Shares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive, Scope, Send

    from pyllmcancel.front.keeper import Keeper
    from pyllmcancel.front.spec import Spec
    from pyllmcancel.front.upstream import Headers
    from pyllmcancel.front.worker import Worker
    from pyllmcancel.server.config import ServerConfig
    from pyllmcancel.shares import Owners

logger = logging.getLogger("pyllmcancel.front")

# Paths of what computes nothing: which worker has it is not known, or does not matter.
RESPONSES = re.compile(r"/v1/responses/(?!input_tokens$|compact$)(.*?)(/input_items|/cancel)?", re.DOTALL)
CANCEL = "POST", "/cancel"
SHARED = ("/docs", "/openapi.json")
MAX_SHOWN = 20  # names in an error
MAX_CANCELLED = 256  # remembered responses


class Router:
    """The ASGI application behind the routes of this process. Used in the event loop only.

    As many requests of one owner may wait for loads as in one model's queue. `paths` are those of what models compute,
    each with whether its requests belong to groups.
    """

    def __init__(self, keeper: Keeper, config: ServerConfig, owners: Owners, paths: Mapping[str, bool]) -> None:
        self.keeper = keeper
        self._paths = paths
        self.requests = FrontRequests(config.engine.max_queue)
        self._tasks = set[asyncio.Task[None]]()  # each has a request computed
        own = {Deadline.ALL: config.engine.request_timeout, Deadline.QUEUE: config.engine.queue_timeout}
        self._deadlines = {one: math.inf if seconds is None else seconds for one, seconds in own.items()}
        self._stream_keep = config.stream_keep
        self.streams = KeptAnswers[KeptAnswer](MAX_STREAMS, owners)
        self._cancelled = Remembered[str, JSONResponse](MAX_CANCELLED)  # in the background, without a process
        self._bodies = Shares(config.limits.max_bodies, owners)  # long ones that are kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        try:
            if scope["method"] == "POST" and not RESPONSES.fullmatch(path):
                await self._compute(scope, receive, send)
                return
            message, answer = ForwardedRequest.of(scope, await body_of(receive)), ClientAnswer(scope, send)
            work = self._look_up(message, answer)
            await until_left(scope, receive, asyncio.create_task(work, name=f"look up {path}"))
        except ClientLeft:  # its answer may have begun
            exchange_of(scope).client_gone = True

    async def close(self) -> None:
        """End the requests. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_up(self, message: ForwardedRequest, answer: ClientAnswer) -> None:
        """Answer what computes nothing."""
        scope = answer.scope
        path = scope["path"]
        if found := RESPONSES.fullmatch(path):
            await self._to_response(found, message, answer)
        elif path in SHARED:
            await exchange_with_each(message, self._serving_any(), answer)
        else:
            spec = await self.named(query_of(scope).get("model"))
            await exchange_with_each(message, [self.serving(spec)], answer)

    # -- one model ----------------------------------------------------------------------------------------------------

    def serving(self, spec: Spec) -> Worker:
        """Return a process of the model; ApiError if none serves."""
        serving = self.keeper.serving(spec)
        if serving is None:
            raise ApiError(400, f"the model {spec.name} is not loaded", param="model", code="model_not_loaded")
        return serving

    async def _compute(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the model that the body names compute the request."""
        message = ForwardedRequest.of(scope, await body_of(receive))
        # Listed from its head on, and until here its own: see `Arriving`. What computes nothing is listed from here on.
        exchange = exchange_of(scope)
        request: Any = exchange.request or self.requests.arrive(**plain_origin(Request(scope)))
        exchange.request = None  # its relay ends it
        relay = Relay(self.requests, request, message, RelayedAnswer(scope, send, request))
        with watched(receive, relay.client_left):
            task = asyncio.create_task(self._relayed(relay, scope), name=f"relay {request.id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            await relay.until_done(task)
        if relay.kept is not None and relay.kept.response is not None:
            await relay.kept.response(scope, receive, send)

    async def _relayed(self, relay: Relay, scope: Scope) -> None:
        """Have a request computed, which may go on after its client's call, and write its ending, if nobody has."""
        request, ended_by = relay.request, None
        try:
            self.requests.take_over(request, relay.pass_cancel_on)
            await self._read(scope, relay)
            relay.settle(self.streams)
            outlives = request.is_background or relay.kept is not None
            connection = None if outlives else connection_of(scope)
            # A client that has vanished, or does not read, cancels its request.
            cancel = partial(self.requests.cancel, request)
            with nullcontext() if connection is None else connection.answering(cancel):
                await self._computed(relay)
        except Exception as error:
            ended_by = error
            if not relay.done.is_set():
                raise
            if not isinstance(error, ApiError | RequestCancelled | ClientLeft):
                logger.exception("request %s failed after its client had its answer, or had left", request.id)
        finally:
            self.requests.leave(request, ended_by, relay.status)
            if request.is_background and request.cancellation.requested and not request.process and relay.status:
                self._cancelled.put(*request.response, cancelled_response(request))

    async def _read(self, scope: Scope, relay: Relay) -> None:
        """Read what the request asks of the front. Its model and its groups are known from now on."""
        request = relay.request
        fields = await fields_of(relay.message.body)
        query = query_of(scope)
        spec = await self.named(fields.get("model", query.get("model")))
        grouped = self._paths.get(scope["path"], False)
        names = take_preferences(request, scope, fields, stream_keep=self._stream_keep, grouped=grouped)
        if query["autoload"].lower() not in ("1", "true") if query.get("autoload") else not self.keeper.autoload:
            self.serving(spec)
        with suppress(InvalidRequestError):  # its process refuses it
            given = fields.get("priority")
            given = given if given == "idle" or type(given) is int else None
            priority = IDLE if fields.get("prefetch") is True else priority_of(Request(scope), given)
            names = names._replace(priority=priority)
        request.model, request.spreads = spec.name, exchange_of(scope).spreads
        if names != (request.session, request.parent, request.supersede, request.priority):
            self.requests.arrivals.name(request, names)
        for deadline, seconds in self._deadlines.items():
            usual = math.inf if request.is_idle else seconds
            relay.ends_after(min(seconds_in(fields, deadline), usual), deadline)

    async def _computed(self, relay: Relay) -> None:
        request, message = relay.request, relay.message
        n_bytes = len(message.body)
        stale = frozenset(self.requests.moved.get((request.owner, request.previous), ()))
        idle = request.is_idle and not self.keeper.idle_loads
        claim = Claim(request.model, request.owner, names_of(request), n_bytes, stale, idle)
        message.is_kept = n_bytes <= SMALL_BODY or self._bodies.take(request.owner, n_bytes)
        try:
            while (ended := await self._sent(claim, relay)) is not None:
                request.process = None
                claim = claim._replace(avoids=claim.avoids | {ended.name})
                if not self.keeper.has_other(claim):
                    await self._waited(ended.end(), relay)
                    claim = claim._replace(avoids=frozenset())
        except (ApiError, RequestCancelled) as error:
            await relay.break_off(error)
        finally:
            if message.is_kept and n_bytes > SMALL_BODY:
                self._bodies.give_back(request.owner, n_bytes)

    async def _sent(self, claim: Claim, relay: Relay) -> Worker | None:
        """Answer as the model's process does; return the process if it was found to have ended instead."""
        ticket = self.keeper.want(claim)
        try:
            extra: Headers = []
            if not ticket.admitted.done():
                began = time.monotonic()
                await self._waited(ticket.admitted, relay)
                extra = [(b"x-model-load-ms", b"%d" % round((time.monotonic() - began) * 1e3))]
            process = await relay.until(ticket.admitted)
            if (previous := relay.request.previous) is not None:
                await bring(self.keeper.ready(), self.requests.moved, relay.request.owner, previous, process)
            try:
                await relay.through(process, extra)
            except Lost:
                return process
            return None
        finally:
            self.keeper.drop(ticket, relay.request.keep_alive)

    async def _waited(self, future: asyncio.Future[Any], relay: Relay) -> None:
        """Wait; until then the request is one of those that wait for their models, and supersedes older ones."""
        try:
            self.requests.waits_for_model(relay.request)
            await relay.until(future)
            self.requests.model_is_ready(relay.request)
        finally:
            self.keeper.notify()

    async def named(self, name: Any) -> Spec:
        """Return the model of this name, or the default; ApiError if there is none."""
        if name is None or name == "":
            spec = self.keeper.catalog.default
            if spec is None:
                raise self._unknown(None)
            return spec
        if not isinstance(name, str):
            raise ApiError(400, "model must be a text", param="model", code="invalid_request")
        found = self.keeper.catalog.find(name)
        if found is None:
            await self.keeper.reread()  # it may have come since
            found = self.keeper.catalog.find(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: str | None) -> ApiError:
        if self.keeper.remotes is not None and self.keeper.remotes.has_silent:
            message = "no worker of this model is known yet"
            return ApiError(503, message, "server_error", param="model", code="worker_unreached")
        if name is None:
            return ApiError(404, "there is no model", param="model", code="model_not_found")
        return unknown_model(name, list(self.keeper.catalog.specs))

    # -- all models ---------------------------------------------------------------------------------------------------

    async def own_props(self, name: str | None) -> dict[str, Any] | None:
        """Return what llama-server's router says of itself; None if the question goes to a model: to the named one of
        several, or to the only one while it serves. ApiError if there is no such model.
        """
        specs, most = self.keeper.catalog.specs, self.keeper.roster.most
        props: dict[str, Any] = {
            "role": "router",
            "max_instances": 0 if most == math.inf else most,
            "models_autoload": self.keeper.autoload,
            "model_alias": "pyllmcancel",
            "model_path": "none",
            "default_generation_settings": {"params": {}, "n_ctx": 0},
            "build_info": f"b-pyllmcancel-{__version__}",
        }
        if name is not None or len(specs) < 2:
            spec = await self.named(name)
            if len(specs) > 1 or self.keeper.serving(spec) is not None:
                return None
            props["is_sleeping"] = any(one.asleep for one in self.keeper.workers(spec.name))
        return props

    def _serving_any(self) -> list[Worker]:
        """Return the workers that serve; ApiError if there is none."""
        if not (ready := self.keeper.ready()):
            raise ApiError(503, "no model is loaded", "server_error", code="no_model_loaded")
        return ready

    def _having(self, owner: str, name: str) -> list[Worker]:
        """Return the workers that may have an answer by this name: not those whose answer went on elsewhere."""
        ready, moved = self.keeper.ready(), self.requests.moved.get((owner, name), ())
        return [one for one in ready if one.name not in moved] or ready

    async def _to_response(self, path: re.Match[str], message: ForwardedRequest, answer: ClientAnswer) -> None:
        """Send what a stored response is asked for; its input may be on several workers."""
        owner, asked = exchange_of(answer.scope).owner, (message.method, path[2])
        live = [one for one in self.requests.registry.requests(owner) if isinstance(one, FrontRequest)]
        request = next((one for one in live if one.is_background and one.response[1] == path[1]), None)
        if request is not None and asked == CANCEL:
            self.requests.cancel(request)  # here: its process may hang, or another one may be about to get it
            await asyncio.shield(asyncio.wrap_future(request.ended))
            having = [] if request.process is None else [request.process]
            await exchange_with_each(message, having, answer, cancelled_response(request))
            return
        if request is not None and request.is_coming:
            raise not_ready()
        ready = self._serving_any()
        if path[2] == "/input_items":
            work = (bring(ready, self.requests.moved, owner, path[1], one, if_there=True) for one in ready)
            await asyncio.gather(*work, return_exceptions=True)
        if asked == ("DELETE", None):
            self._cancelled.pop(owner, path[1])
        is_state = asked in (CANCEL, ("GET", None)) and not query_of(answer.scope).get("stream")
        known = self._cancelled.get(owner, path[1]) if is_state else None
        await exchange_with_each(message, self._having(owner, path[1]), answer, known)


def cancelled_response(request: FrontRequest) -> JSONResponse:
    """Return what is known here of a cancelled response in the background: no output of it."""
    head = {"id": request.response[1], "object": "response", "created_at": int(request.created_at)}
    told = {"background": True, "status": "cancelled", "error": None, "output": [], "usage": None}
    return JSONResponse(head | {"model": request.model} | told)


def query_of(scope: Scope) -> QueryParams:
    return QueryParams(scope.get("query_string", b""))


def unknown_model(name: str, known: list[str]) -> ApiError:
    shown = ", ".join(known[:MAX_SHOWN]) + (f" and {len(known) - MAX_SHOWN} more" if len(known) > MAX_SHOWN else "")
    message = f"there is no model {name[:100]!r}; there are: {shown}"
    return ApiError(404, message, param="model", code="model_not_found")
