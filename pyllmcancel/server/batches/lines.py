"""The lines of a batch: read from its file, and written as results."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice

from pyllmcancel.server.bodies import json_value
from pyllmcancel.server.errors.responses import CLIENT_CLOSED_REQUEST, RETRY_AFTER_SECONDS, ApiError
from pyllmcancel.server.responses.storage.rows import said

MAX_LINES, MAX_CUSTOM_ID = 50_000, 512
# In errors that are not the line's: a server whose engine has died ends soon, and the next one goes on; in a front
# others are to have the model loaded.
PASSING = b'"engine_failed"', b'"the engine died: ', b'"model_not_loaded"'
NO_JSON, WRONG = "invalid_json", "invalid_request"  # codes of errors
Result = tuple[int, bool, bytes]
"""A line's number, whether it has failed, and its line in a file of results."""


@dataclass(slots=True)
class Answered:
    """An answer in one piece. A request that was cancelled as by its client's leaving has none."""

    status: int = CLIENT_CLOSED_REQUEST
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""

    @property
    def retry_after(self) -> float | None:
        """The seconds after which the request should be sent again; None if it should not."""
        if self.status >= 400 and any(text in self.body for text in PASSING):
            return RETRY_AFTER_SECONDS
        if self.status not in (429, 503) or self.headers.get(b"x-should-retry") == b"false":
            return None
        given = self.headers.get(b"retry-after", b"")
        return float(given) if given.isdigit() else RETRY_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a batch: the body of its request, or the code and the message of what is wrong with it."""

    number: int
    custom_id: str | None
    body: bytes = b""
    error: tuple[str, str] | None = None

    def refused(self, code: str, message: str) -> Result:
        """Return the result of a line that was not computed."""
        error = said({"code": code, "message": message}).encode()
        return self._result(b'null,"error":%b' % error, failed=True)

    def answered(self, answer: Answered) -> Result:
        """Return the result of a line that was computed. Its JSON, which may be long, is taken as it is."""
        told = said({"status_code": answer.status, "request_id": answer.headers.get(b"x-request-id", b"").decode()})
        return self._result(
            b'%b,"body":%b},"error":null' % (told[:-1].encode(), answer.body or b"null"), failed=answer.status >= 400
        )

    def _result(self, rest: bytes, *, failed: bool) -> Result:
        told = said({"id": f"batch_req_{self.number}", "custom_id": self.custom_id})
        return self.number, failed, b'%b,"response":%b}\n' % (told[:-1].encode(), rest)


def read_lines(content: bytes, endpoint: str, max_values: int) -> list[Line]:
    """Return the lines of a batch, blank ones left out; ApiError if there is none, or none is JSON."""
    found = ((number, text) for number, text in enumerate(BytesIO(content), 1) if text.strip())
    texts = list(islice(found, MAX_LINES + 1))
    if not texts:
        raise ApiError(400, "the file has no lines", code="empty_file")
    if len(texts) > MAX_LINES:
        raise ApiError(400, f"the file has more than {MAX_LINES:,} lines", code="too_many_tasks")
    seen: set[str] = set()
    lines = [_line(number, text, endpoint, max_values, seen) for number, text in texts]
    errors = [line.error for line in lines if line.error is not None and line.error[0] == NO_JSON]
    if len(errors) == len(lines):
        raise ApiError(400, f"the file is no JSON Lines: {errors[0][1]}", code="invalid_json_line")
    return lines


def _line(number: int, text: bytes, endpoint: str, max_values: int, seen: set[str]) -> Line:
    name = None
    try:
        sent = json_value(text, max_values)
        if not isinstance(sent, dict):
            raise ApiError(400, "the line is no JSON object", code=NO_JSON)
        name, body = sent.get("custom_id"), sent.get("body")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_CUSTOM_ID:
            name = None
            raise ApiError(400, f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters", code=WRONG)
        if name in seen:
            raise ApiError(400, "an earlier line has the same custom_id", code="duplicate_custom_id")
        seen.add(name)
        if (sent.get("method"), sent.get("url")) != ("POST", endpoint):
            raise ApiError(400, f"method must be POST, and url {endpoint}, as the batch's endpoint", code=WRONG)
        if not isinstance(body, dict) or body.get("stream") or body.get("background"):
            raise ApiError(400, "body must be an object, without stream and background", code=WRONG)
        return Line(number, name, said(body).encode())
    except ApiError as error:
        return Line(number, name, error=(error.code or WRONG, error.message))
