"""The few fields of a body that choose its way; its process validates the rest, and refuses what is wrong."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic_core import SchemaValidator, ValidationError, core_schema

from pyllmcancel.cancellation import Deadline
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.forms import form_fields
from pyllmcancel.server.origin import KEY_FIELDS, PARENT_FIELDS, SESSION_FIELDS

OWN_FIELDS = ("background", "model", "keep_alive", "keep_going", "previous_response_id", "stream")
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
