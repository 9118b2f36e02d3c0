"""Bodies of the type multipart/form-data, which carry files. The whole body is in memory, and its length is limited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyllmcancel.server.errors.responses import ApiError

if TYPE_CHECKING:
    from fastapi import Request

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
    """Return the values of a form's fields: texts, the contents of files, and lists for names that end in ``[]``.

    Raises
    ------
    ApiError
        The form is invalid, or has too many fields.
    """
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser

    form = _Form()
    try:
        parser = MultipartParser(  # which refuses some boundaries
            boundary,
            {
                "on_part_begin": form.begin,
                "on_header_field": form.header_name,
                "on_header_value": form.header_value,
                "on_header_end": form.end_header,
                "on_part_data": form.data,
                "on_part_end": form.end,
                "on_end": form.finish,
            },
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise invalid(f"the form is invalid: {error}") from None
    if not form.is_whole:
        raise invalid("the form is cut short")
    return form.fields


def invalid(message: str, param: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code="invalid_form")


class _Form:
    """The fields that a parser has found so far."""

    def __init__(self) -> None:
        self.fields: dict[str, Value] = {}
        self.is_whole = False
        self.begin()

    def begin(self) -> None:
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = b"", b""
        self._pieces: list[bytes] = []

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name, self._value = b"", b""

    def data(self, data: bytes, start: int, end: int) -> None:
        self._pieces.append(data[start:end])

    def end(self) -> None:
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        content = b"".join(self._pieces)
        try:
            name = options[b"name"].decode()
            value: str | bytes = SentFile(content) if b"filename" in options else content.decode()
            if isinstance(value, SentFile):
                value.name = options[b"filename"].decode()
        except (KeyError, UnicodeDecodeError):
            raise invalid("a field of the form has no name, or is no UTF-8") from None
        if len(self.fields) >= MAX_FIELDS or len(name) > MAX_NAME:
            raise invalid(f"the form has more than {MAX_FIELDS} fields, or one whose name is too long")
        self._add(name, value)

    def _add(self, name: str, value: str | bytes) -> None:
        if name.endswith("[]") and isinstance(value, str):
            listed = self.fields.setdefault(name[:-2], [])
            if not isinstance(listed, list) or len(listed) >= MAX_FIELDS:
                raise invalid("the form has a field twice, or too often", name[:-2])
            listed.append(value)
        elif name in self.fields:
            raise invalid("the form has a field twice", name)
        else:
            self.fields[name] = value

    def finish(self) -> None:
        self.is_whole = True
