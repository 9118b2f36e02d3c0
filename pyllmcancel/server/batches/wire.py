"""Bodies and answers of ``/v1/files`` and ``/v1/batches``, as OpenAI has them."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.responses.body import MetadataKey, MetadataValue
from pyllmcancel.server.wire.fields import Answer, RequestBody

# The kinds of objects in the store: files by their purposes, and batches.
INPUT, OUTPUT, BATCH = "batch", "batch_output", "batches"
FILES = (INPUT, OUTPUT)
Told = dict[str, Any]  # a file, or a batch, as its owner is shown it
Status = Literal["validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"]
Purpose = Literal["batch", "batch_output"]
Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]

WINDOW = re.compile(r"(\d{1,6})([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MAX_WINDOW = 30 * 86_400


class UploadBody(RequestBody):
    file: bytes = Field(description="JSON Lines.", json_schema_extra={"format": "binary"})
    purpose: Literal["batch"]


class BatchBody(RequestBody):
    input_file_id: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    endpoint: Endpoint = Field(description="The `url` of all lines.")
    completion_window: str = Field("24h", description="A number of `s`, `m`, `h` or `d`, 30 days at most.")
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None

    @property
    def seconds(self) -> int:
        """The seconds of the window; InvalidRequestError if it is none."""
        found = WINDOW.fullmatch(self.completion_window)
        seconds = 0 if found is None else int(found[1]) * SECONDS[found[2]]
        if not 0 < seconds <= MAX_WINDOW:
            raise InvalidRequestError("must be a number of s, m, h or d, 30d at most", "completion_window")
        return seconds


class FileAnswer(Answer):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    status: Literal["processed"]


class DeletedFile(Answer):
    id: str
    object: Literal["file"]
    deleted: bool


class BatchAnswer(Answer):
    id: str
    object: Literal["batch"]
    endpoint: Endpoint
    errors: dict[str, Any] | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: dict[Literal["total", "completed", "failed"], int]
    metadata: dict[str, str] | None


class ObjectPage(Answer):
    object: Literal["list"]
    data: list[FileAnswer | BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


def file_told(file_id: str, purpose: Purpose, name: str, n_bytes: int, at: float) -> Told:
    told = {"id": file_id, "object": "file", "bytes": n_bytes, "created_at": int(at), "filename": name}
    return told | {"purpose": purpose, "status": "processed"}
