"""Bodies of the type multipart/form-data, which carry files. The whole body is in memory, and its length is limited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Request

from pyllmcancel.server.errors.responses import ApiError

if TYPE_CHECKING:
    from python_multipart.multipart import Field, File

MAX_FIELDS = 64
MAX_NAME = 200  # bytes of a field's name
FORM = "multipart/form-data"
NOT_A_FORM = f"the body must be a form with a file, sent with Content-Type: {FORM}"

Value = str | bytes | list[str]


class SentFile(bytes):
    """The content of a file, and the name under which it was sent."""

    name = ""


def boundary_of(request: Request) -> bytes:
    """Return the text that parts a form's fields; ApiError 415 if the body is no form."""
    # Not at the start: few servers ever get a form.
    from python_multipart.multipart import parse_options_header

    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary: bytes = options.get(b"boundary", b"")
    if kind != FORM.encode() or not 0 < len(boundary) <= MAX_NAME:
        raise ApiError(415, NOT_A_FORM, code="unsupported_media_type")
    return boundary


def form_fields(body: bytes, boundary: bytes) -> dict[str, Value]:
    """Return a form's texts, contents of files, and lists for names that end in ``[]``; ApiError if it is invalid."""
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import FormParser

    fields: dict[str, Value] = {}
    ends: list[bool] = []

    def add_text(field: Field) -> None:
        add(fields, text_of(field.field_name), text_of(field.value))

    def add_file(file: File) -> None:
        file.file_object.seek(0)
        content = SentFile(file.file_object.read())
        content.name = text_of(file.file_name)
        add(fields, text_of(file.field_name), content)

    try:
        in_memory = {"MAX_MEMORY_FILE_SIZE": len(body) + 1}
        parser = FormParser(FORM, add_text, add_file, lambda: ends.append(True), boundary, config=in_memory)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise invalid(f"the form is invalid: {error}") from None
    if not ends:
        raise invalid("the form is cut short")
    return fields


def invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_form")


def text_of(sent: bytes | None) -> str:
    try:
        return (sent or b"").decode()
    except UnicodeDecodeError:
        raise invalid("a text of the form is no UTF-8") from None


def add(fields: dict[str, Value], name: str, value: str | bytes) -> None:
    if len(fields) >= MAX_FIELDS or len(name) > MAX_NAME:
        raise invalid(f"the form has more than {MAX_FIELDS} fields, or one whose name is too long")
    if name.endswith("[]") and isinstance(value, str):
        listed = fields.setdefault(name[:-2], [])
        if not isinstance(listed, list) or len(listed) >= MAX_FIELDS:
            raise invalid("the form has a field twice, or too often", name[:-2])
        listed.append(value)
    elif name in fields:
        raise invalid("the form has a field twice", name)
    else:
        fields[name] = value
