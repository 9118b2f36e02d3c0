"""``/v1/files`` and ``/v1/batches``."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from pyllmcancel.server.batches import wire
from pyllmcancel.server.batches.running import Batches
from pyllmcancel.server.batches.wire import BATCH, FILES, BatchAnswer, BatchBody, FileAnswer, ObjectPage, UploadBody
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.openapi.description import answers, errors

router = APIRouter(tags=["Batches"], responses=errors(400, 404, 429, 503, 507))
FILE, SOME, ONE = answers(FileAnswer), answers(ObjectPage), answers(BatchAnswer)
CONTENT: Any = {200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}
Limit = Annotated[int, Query(ge=1, le=1_000)]


def at(request: Request) -> tuple[Batches, str]:
    """Return the batches of this server, and the owner who asks."""
    return request.app.state.batches, exchange_of(request.scope).owner


@router.post("/v1/files", summary="Store a file", responses=FILE)
async def upload_file(incoming: Annotated[Incoming[UploadBody], reads(UploadBody, is_form=True)]) -> Any:
    batches, owner = at(incoming.http)
    content, file_id = incoming.body.file, f"file-{secrets.token_hex(12)}"
    file = wire.file_told(file_id, "batch", getattr(content, "name", "")[:MAX_NAME], len(content), time.time())
    await asyncio.wrap_future(batches.store.add_file(owner, file, content))
    return file


@router.get("/v1/files", summary="Files, the newest first", responses=SOME)
async def list_files(
    request: Request,
    *,
    purpose: wire.Purpose | None = None,
    limit: Limit = 1_000,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Any:
    batches, owner = at(request)
    return await batches.store.page(owner, FILES if purpose is None else (purpose,), limit, after, order)


@router.get("/v1/files/{file_id}", summary="A file's name and size", responses=FILE)
async def get_file(request: Request, file_id: str) -> Any:
    batches, owner = at(request)
    return await batches.store.get(owner, file_id, *FILES)


@router.delete("/v1/files/{file_id}", summary="Delete a file", responses=answers(wire.DeletedFile))
async def delete_file(request: Request, file_id: str) -> Any:
    batches, owner = at(request)
    if not await asyncio.wrap_future(batches.store.delete_file(owner, file_id)):
        await get_file(request, file_id)
        raise ApiError(400, "a batch that has not ended needs this file", param="file_id", code="file_in_use")
    return wire.DeletedFile(id=file_id, object="file", deleted=True)


@router.get("/v1/files/{file_id}/content", summary="A file's content", response_class=Response, responses=CONTENT)
async def get_content(request: Request, file_id: str) -> StreamingResponse:
    batches, owner = at(request)
    # If the file is deleted meanwhile, its client sees by this length that the content is cut.
    length = {"Content-Length": str((await get_file(request, file_id))["bytes"])}
    content = batches.store.content(owner, file_id)
    return StreamingResponse(content, media_type="application/octet-stream", headers=length)


@router.post("/v1/batches", summary="Compute a file's requests", responses=ONE)
async def create_batch(incoming: Annotated[Incoming[BatchBody], reads(BatchBody)]) -> Any:
    batches, owner = at(incoming.http)
    return await batches.create(owner, incoming.body)


@router.get("/v1/batches", summary="Batches, the newest first", responses=SOME)
async def list_batches(request: Request, *, limit: Limit = 20, after: str | None = None) -> Any:
    batches, owner = at(request)
    return await batches.store.page(owner, (BATCH,), limit, after)


@router.get("/v1/batches/{batch_id}", summary="How far a batch is", responses=ONE)
async def get_batch(request: Request, batch_id: str) -> Any:
    batches, owner = at(request)
    return await batches.store.get(owner, batch_id, BATCH)


@router.post("/v1/batches/{batch_id}/cancel", summary="Cancel a batch; results stay", responses=ONE | errors(409))
async def cancel_batch(request: Request, batch_id: str) -> Any:
    batches, owner = at(request)
    return await batches.cancel(owner, batch_id)
