"""The few fields and headers that say where a request goes: its model, its groups and its times.

They are read in front, where it may have to wait for its model. Its process validates the rest, and refuses errors.
"""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pydantic_core import SchemaValidator, ValidationError, core_schema
from starlette.requests import Request as HttpRequest

from pyllmcancel.cancellation import Deadline
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.requests.request import Names
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.forms import form_fields
from pyllmcancel.server.limits import MAX_NAME, SMALL_BODY
from pyllmcancel.server.origin import CONVERSATION_HEADERS, KEY_FIELDS, PARENT_FIELDS, SESSION_FIELDS, is_name, named
from pyllmcancel.server.streams.kept import Keeping, conversation_key
from pyllmcancel.server.wire.fields import MAX_TIMEOUT

if TYPE_CHECKING:
    from starlette.types import Scope

    from pyllmcancel.front.requests import FrontRequest

OWN_FIELDS = (
    "background",
    "model",
    "keep_alive",
    "keep_going",
    "prefetch",
    "previous_response_id",
    "priority",
    "stream",
)
BOOLEANS = {"true": True, "false": False}  # of a form
MAX_VALUE = 8_192  # characters of a value: longer ones name nothing
OPENINGS = (b",", b"[", b"{")  # a value comes after each, if it is not in a text
MAX_VALUES = 1_000_000  # more than any context has tokens: the parser keeps the GIL until it is done

TEXT = core_schema.str_schema(max_length=MAX_VALUE, strict=True)
NUMBERS = (
    core_schema.bool_schema(strict=True),
    core_schema.int_schema(strict=True),
    core_schema.float_schema(strict=True),
)
SCALAR = core_schema.union_schema([core_schema.none_schema(), *NUMBERS, TEXT], mode="left_to_right")
FIELD = core_schema.typed_dict_field(core_schema.with_default_schema(SCALAR, on_error="omit"), required=False)
WANTED = dict.fromkeys((*OWN_FIELDS, *map(str, Deadline), *SESSION_FIELDS, *PARENT_FIELDS, *KEY_FIELDS), FIELD)
# It makes no objects of what is not wanted: some microseconds for a chat, and a tenth of what `json` takes.
BODY = SchemaValidator(core_schema.typed_dict_schema(WANTED))


def fields_in(body: bytes) -> dict[str, Any]:
    """Return the wanted fields of a JSON object, or of a form, that are texts, numbers, booleans or null.

    What is neither has none: the process that gets the body reports it. The texts of a form may stand for numbers.
    ApiError if the body is too long to be parsed.
    """
    if sum(map(body.count, OPENINGS)) > MAX_VALUES:
        raise ApiError(400, f"the body has more than {MAX_VALUES:,} values", code="too_many_values")
    found: dict[str, Any] = {}
    with suppress(ApiError, ValidationError):
        if body.startswith(b"--"):  # as no JSON does
            form = form_fields(body, body[2:].partition(b"\r\n")[0])
            texts = {name: value for name, value in form.items() if isinstance(value, str)}
            found = BODY.validate_python({name: BOOLEANS.get(text, text) for name, text in texts.items()})
        else:
            found = BODY.validate_json(body)
    return found


DURATION = re.compile(r"(-?\d+(?:\.\d+)?)(ms|s|m|h)?")
UNITS = {None: 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


async def fields_of(body: bytes) -> dict[str, Any]:
    return fields_in(body) if len(body) <= SMALL_BODY else await asyncio.to_thread(fields_in, body)


def take_preferences(
    request: FrontRequest, scope: Scope, fields: dict[str, Any], *, stream_keep: float, grouped: bool
) -> Names:
    """Have a request know what it asks of the front. Return its names; it has those of its headers already.

    A name or time of a wrong form counts as missing, since the model's process refuses it. One that generates is
    `grouped`: it may belong to groups, and have a stream that goes on without a reader for `stream_keep` seconds.
    """
    is_response = "/responses" in scope["path"]
    previous = fields.get("previous_response_id") if is_response else None
    request.previous = previous if isinstance(previous, str) and len(previous) <= MAX_NAME else None
    request.keep_alive = keep_alive(fields)
    if not grouped:
        return Names()
    request.is_background = is_response and fields.get("background") is True
    names = Names(
        request.session or name_in(fields, SESSION_FIELDS),
        request.parent or name_in(fields, PARENT_FIELDS),
        request.supersede or name_in(fields, KEY_FIELDS),
    )
    if stream_keep > 0 and fields.get("stream") is True and not request.is_background:
        asked, conversation = fields.get("keep_going"), None
        with suppress(InvalidRequestError):
            conversation = named(HttpRequest(scope), CONVERSATION_HEADERS)
        if conversation is not None:
            names = names._replace(supersede=names.supersede or conversation_key(conversation))
        if conversation is not None or asked:
            seconds = stream_keep
            if isinstance(asked, float | int) and asked is not True and asked > 0:
                seconds = min(asked, stream_keep)
            request.keeping = Keeping(conversation or request.id, seconds)
    return names


def name_in(fields: dict[str, Any], names: tuple[str, ...]) -> str | None:
    found = next((fields[name] for name in names if isinstance(fields.get(name), str)), None)
    return found if found is not None and is_name(found) else None


def seconds_in(fields: dict[str, Any], deadline: Deadline) -> float:
    """Return the seconds of a request's own deadline. The values of a form are texts."""
    value: Any = fields.get(deadline)
    with suppress(ValueError, TypeError, OverflowError):
        seconds = math.inf if isinstance(value, bool) else float(value)
        if 0 < seconds <= MAX_TIMEOUT:
            return seconds
    return math.inf


def keep_alive(fields: dict[str, Any]) -> float | None:
    """Return the seconds of Ollama's field: a number, or a duration such as ``5m``; negative: for ever."""
    value = fields.get("keep_alive")
    if value is None:
        return None
    found = DURATION.fullmatch(str(value).strip()) if isinstance(value, int | float | str) else None
    if found is None or isinstance(value, bool):
        message = "keep_alive must be seconds, or a duration such as 30s, 5m or 1h; negative: for ever"
        raise ApiError(400, message, param="keep_alive", code="invalid_request")
    seconds = float(found[1]) * UNITS[found[2]]
    return math.inf if seconds < 0 else seconds
