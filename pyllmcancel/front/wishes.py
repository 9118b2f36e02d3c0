"""The groups and times that a request names, read in front, where it may have to wait for its model."""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.datastructures import Headers

from pyllmcancel.front.body_fields import scalars
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.request_context import request_id_of
from pyllmcancel.server.limits import INLINE_BODY, MAX_NAME
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
from pyllmcancel.server.wire.fields import MAX_TIMEOUT

if TYPE_CHECKING:
    from starlette.types import Scope

OWN_FIELDS = ("background", "model", "keep_alive", "keep_going", "previous_response_id", "stream", "timeout")
WANTED = frozenset((*OWN_FIELDS, *SESSION_FIELDS, *PARENT_FIELDS, *KEY_FIELDS))
DURATION = re.compile(r"(-?\d+(?:\.\d+)?)(ms|s|m|h)?")
UNITS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class Wishes(NamedTuple):
    """A name or time of a wrong form counts as missing, since the model's process refuses it.

    Attributes
    ----------
    key
        The supersede key.
    streams
        The names by which its stream can be taken up again, if it will have such a stream.
    keep_going
        The seconds for which such a stream goes on without a reader.
    timeout
        The seconds from its arrival that it may take; infinite: no limit.
    keep_alive
        The seconds for which its model is to stay loaded after it; None: as configured.
    previous
        The stored response that it goes on from.
    background
        True if it asks for a response that is generated after its answer.
    """

    session: str | None
    parent: str | None
    key: str | None
    streams: tuple[str, ...]
    keep_going: float
    timeout: float
    keep_alive: float | None
    previous: str | None = None
    background: bool = False


async def fields_of(body: bytes) -> dict[str, Any]:
    if len(body) <= INLINE_BODY:
        return scalars(body, WANTED)
    return await asyncio.to_thread(scalars, body, WANTED)


def wishes_of(scope: Scope, fields: dict[str, Any], *, stream_keep: float) -> Wishes:
    key = name_of(scope, fields, KEY_HEADERS, KEY_FIELDS)
    streams: tuple[str, ...] = ()
    if stream_keep > 0 and fields.get("stream") is True:
        conversation = name_of(scope, fields, CONVERSATION_HEADERS, ())
        if conversation is not None:
            key = key or conversation_key(conversation)
            streams = (conversation, request_id_of(scope))
        elif fields.get("keep_going"):
            streams = (request_id_of(scope),)
    session = name_of(scope, fields, SESSION_HEADERS, SESSION_FIELDS)
    parent = name_of(scope, fields, PARENT_HEADERS, PARENT_FIELDS)
    asked = fields.get("keep_going")
    seconds = (
        min(asked, stream_keep) if isinstance(asked, float | int) and asked is not True and asked > 0 else stream_keep
    )
    is_response = "/responses" in scope["path"]
    previous = fields.get("previous_response_id") if is_response else None
    if not isinstance(previous, str) or len(previous) > MAX_NAME:
        previous = None
    times = seconds, seconds_in(fields), keep_alive(fields.get("keep_alive"))
    return Wishes(session, parent, key, streams, *times, previous, is_response and fields.get("background") is True)


def name_of(scope: Scope, fields: dict[str, Any], headers: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    given = header(scope, *headers)
    if given is None:
        given = next((fields[name] for name in names if isinstance(fields.get(name), str)), None)
    return given if given is not None and is_name(given) else None


def header(scope: Scope, *names: str) -> str | None:
    """Return the first of these headers that is given."""
    headers = Headers(scope=scope)
    found = (headers.get(name) for name in names)
    return next((value.encode("latin-1").decode("utf-8", "replace") for value in found if value), None)


def seconds_in(fields: dict[str, Any]) -> float:
    """Return the request's own deadline. The values of a form are texts."""
    value = fields.get("timeout")
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT:
        return float(value)
    return math.inf


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
