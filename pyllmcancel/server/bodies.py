"""Reading a body: it is counted, parsed and validated, inline if it is short, else in a worker thread.

First the bytes are counted (`body_limit`), then their values, by the compiled core without the GIL; only then is the
body parsed, because a parser keeps the GIL until it is done.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from fastapi import Depends, Request
from fastapi.routing import APIRoute
from pydantic import ValidationError
from pydantic_core import from_json

from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.pausing import FlaggedPause, Pause, no_pause
from pyllmcancel.requests.request import Names
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.error_handlers import NOT_JSON_TYPE, TOO_DEEP, invalid_body, invalid_json, is_json
from pyllmcancel.server.http.exchange import Exchange, exchange_of
from pyllmcancel.server.http.forms import boundary_of, form_fields
from pyllmcancel.server.http.unknown_fields import spelled, take_unknown
from pyllmcancel.server.http.workers import Preparation, Work, awaited
from pyllmcancel.server.limits import INLINE_BODY, MAX_DEPTH, MAX_FIELDS
from pyllmcancel.server.origin import key_by, names_of
from pyllmcancel.server.preparing import arrive
from pyllmcancel.server.state import ServerState, state_of
from pyllmcancel.server.wire.fields import GeneratingBody, RequestBody

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.routing import BaseRoute

    from pyllmcancel.requests.request import Request as EngineRequest
    from pyllmcancel.server.config import UnknownFields
    from pyllmcancel.server.http.workers import Workers
    from pyllmcancel.server.streams.kept import Keeping

logger = logging.getLogger("pyllmcancel.server")

CHAT_TOOL = re.compile(r"tools\[(\d+)\]\.function")
FIELD = re.compile(r"^\w+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of one request's fields."""

    names: Mapping[str, str] = field(default_factory=dict)  # the API's names, by the chat's, where the two differ
    tools: Sequence[str] | None = None  # the path of each of the chat's tools; None if the paths are the chat's
    schema: str = "parameters"  # the API's name for these, of a tool

    def path(self, path: str) -> str:
        """Return the path, within the request, of a field of the chat."""
        if self.tools is not None and (tool := CHAT_TOOL.match(path)) is not None:
            return self.tools[int(tool[1])] + path[tool.end() :].replace(".parameters", f".{self.schema}", 1)
        return FIELD.sub(lambda found: self.names.get(found[0], found[0]), path)

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Make errors inside the block name the fields that the client has sent."""
        try:
            yield
        except (InvalidRequestError, ApiError) as error:
            if error.param:
                error.param = self.path(error.param)
            raise


UNCHANGED = FieldNames()


T = TypeVar("T")
Body = TypeVar("Body", bound=RequestBody)
Body_co = TypeVar("Body_co", bound=RequestBody, covariant=True)
READING = "reading"  # an attribute of the dependencies that read bodies


class Reading(NamedTuple):
    """How an endpoint reads its body, as for `reads`."""

    body_type: type[RequestBody]
    alone: bool
    is_form: bool

    @property
    def generates(self) -> bool:
        return not self.alone and issubclass(self.body_type, GeneratingBody)


@dataclass(frozen=True, slots=True)
class Incoming(Generic[Body_co]):
    """A request that has been read once, with all the facts that it names."""

    http: Request
    state: ServerState
    exchange: Exchange
    body: Body_co
    length: int  # of the body, in bytes
    keeping: Keeping | None = None  # how its stream is kept, if it can be taken up again
    names: FieldNames = UNCHANGED  # of the fields as its client has sent them

    @property
    def request(self) -> EngineRequest:
        """The engine's request, which is being prepared."""
        assert self.exchange.request is not None, "its endpoint reads a body of a kind that arrives"
        return self.exchange.request

    def asking(self, body: Body, names: FieldNames) -> Incoming[Body]:
        """Return the same request with another body, which was made of its own, after its check."""
        body.check(self.state.engine)
        return Incoming(self.http, self.state, self.exchange, body, self.length, self.keeping, names)

    async def prepare(self, work: Callable[[FlaggedPause], T], workers: Workers | None = None, *, cost: int = 0) -> T:
        """Do some work for the request in one of these threads, and return its result. Without `workers` it is done
        inline if the body, which bounds its cost, is short; `cost` says how many characters more it reads.

        RequestCancelled if the request was cancelled, or its client has left: then ClientLeft for a request that needs
        nothing of the engine. EngineClosedError if the server is shutting down.
        """
        if workers is None and self.length + cost <= INLINE_BODY:
            return work(no_pause)
        request = self.exchange.request
        piece = Preparation(self.state.engine, request) if request is not None else Work(self.exchange.owner)
        return await (workers or self.state.workers).run(self.http.receive, work, piece)

    async def fetch(self, fetching: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what is fetched for the request, in the event loop. A cancel, or the client's leaving, ends it."""
        work = Preparation(self.state.engine, self.request)
        return await awaited(self.http.receive, fetching, work)

    def note_unenforced(self, paths: Sequence[str]) -> None:
        """Log at once the parts of schemas that are not enforced, and report them with the answer."""
        if paths:
            reported = [spelled(self.names.path(path)) for path in paths]
            self.exchange.unenforced += reported
            request_id = self.exchange.request_id
            logger.warning(
                "request %s: not enforced: %s", request_id, ", ".join(reported), extra={"request_id": request_id}
            )


def reads(body_type: type[RequestBody], *, alone: bool = False, is_form: bool = False) -> Any:
    """Return the dependency that gives an endpoint the `Incoming` request, whose body is of this type.

    A body that is declared to FastAPI is parsed and validated in the event loop. So FastAPI does not know it, and
    `pyllmcancel.server.openapi.description` describes it.

    A request that is `alone` is prepared, and generates nothing: it belongs to no groups, whatever its body names. With
    `is_form` the body is a form with a file.
    """

    async def read(request: Request) -> Incoming[RequestBody]:
        incoming = await read_body(request, body_type, is_form=is_form)
        if alone:
            arrive(request, Names())
        if alone or not isinstance(incoming.body, GeneratingBody):
            return incoming
        state, (names, keeping) = incoming.state, names_of(request, incoming.body)
        state.check_model(incoming.body.model)
        own = arrive(request, names)
        if own.supersede is None and state.config.supersede is None:
            state.pile_up.note(own.owner, key_by("client-ip", request, incoming.body), own)
        if keeping is None:
            return incoming
        own.client = None  # it is detached from its connection: its client may leave from here on
        return replace(incoming, http=Request(request.scope, receive_nothing), keeping=keeping)

    read.__dict__[READING] = Reading(body_type, alone, is_form)
    return Depends(read)


def readings_of(routes: Iterable[BaseRoute]) -> dict[str, Reading]:
    """Return, by their paths, how endpoints read their bodies."""
    return {
        route.path: read.call.__dict__[READING]
        for route in routes
        if isinstance(route, APIRoute)
        for read in route.dependant.dependencies
        if READING in getattr(read.call, "__dict__", {})
    }


def arriving_paths(routes: Iterable[BaseRoute]) -> dict[str, bool]:
    """Return the paths whose requests are the engine's, and whether these belong to groups."""
    return {path: one.generates for path, one in readings_of(routes).items() if one.alone or one.generates}


async def receive_nothing() -> Any:
    """Wait for ever, as the `receive` of a client that stays."""
    await asyncio.get_running_loop().create_future()


async def read_body(request: Request, body_type: type[Body], *, is_form: bool = False) -> Incoming[Body]:
    """Return the request with its body as a value of this type; ApiError if it is invalid, or there is no engine."""
    state, exchange = state_of(request), exchange_of(request.scope)
    parse: Callable[[bytes], Any]
    if is_form:
        parse = partial(form_fields, boundary=boundary_of(request))
    elif is_json(request):
        parse = partial(json_value, max_values=state.config.limits.values(state.n_ctx))
    else:
        raise ApiError(415, NOT_JSON_TYPE, code="unsupported_media_type")
    # Not by `request.body()`, which keeps the bytes for as long as the request lives.
    text = b"".join([piece async for piece in request.stream()])
    sent: Incoming[Any] = Incoming(request, state, exchange, None, len(text))
    work = partial(validated, text, body_type, parse, state.config.unknown_fields)
    del text
    body, exchange.ignored = await sent.prepare(work)  # more fields may be found later
    return sent.asking(body, UNCHANGED)


def validated(
    text: bytes, body_type: type[Body], parse: Callable[[bytes], Any], policy: UnknownFields, pause: Pause
) -> tuple[Body, Collection[str]]:
    """Return a body, and its fields that have no effect."""
    value = parse(text)
    pause()
    try:
        body = body_type.model_validate(value)
    except ValidationError as error:
        raise invalid_body(error) from error
    pause()
    return body, take_unknown(body, policy, pause)


def json_value(text: bytes, max_values: int) -> Any:
    """Return the value of a JSON text; ApiError 400 if it is invalid, or has more values, or deeper nesting, than any
    request needs.
    """
    excess = compiled_module().json_excess(text, values=max_values, depth=MAX_DEPTH, fields=MAX_FIELDS)
    if excess is not None:
        kind, key = excess
        param = key.decode("utf-8", "replace")[:100] or None
        message = {
            "values": f"the body has more than {max_values:,} values",
            "depth": TOO_DEEP,
            "fields": f"the body has more than {MAX_FIELDS} fields",
        }[kind]
        raise ApiError(400, message, param=param, code="invalid_json" if kind == "depth" else "too_many_values")
    try:
        return from_json(text)
    except ValueError as error:
        # The parser's message if the text ends, or continues otherwise, after the first half.
        half = " (half of a surrogate pair is not Unicode)" if "hex escape" in str(error) else ""
        raise invalid_json(f"the body is not valid JSON: {error}{half}") from error
