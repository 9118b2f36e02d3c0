"""llama-server's ``POST /slots/{id}?action=save|restore|erase``, with `--slot-save-path`.

The engine thread copies, between two steps; files are read and written by other threads.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

from fastapi import APIRouter, Request

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.bodies import read_body
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.llama.body import SlotFileBody
from pyllmcancel.server.llama.slot_files import SlotFiles, check_name
from pyllmcancel.server.openapi.description import answers, asks, errors
from pyllmcancel.server.state import ServerState, state_of
from pyllmcancel.server.wire.fields import Answer

router = APIRouter(tags=["llama-server"])


class SaveTimings(Answer):
    save_ms: float


class RestoreTimings(Answer):
    restore_ms: float


class SavedSlot(Answer):
    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: SaveTimings


class RestoredSlot(Answer):
    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: RestoreTimings


class ErasedSlot(Answer):
    id_slot: int
    n_erased: int


@router.post(
    "/slots/{id_slot}",
    summary="Save what a slot has computed to a file, restore it, or erase it",
    openapi_extra=asks(SlotFileBody),
    responses=answers(SavedSlot | RestoredSlot | ErasedSlot) | errors(400, 500, 501, 503, 507),
)
async def change_slot(request: Request, id_slot: int, action: Literal["save", "restore", "erase"]) -> Any:
    state, owner = state_of(request), owner_of(request.scope)
    folder = state.config.slot_save_path
    if folder is None:
        message = "this server does not save slots: start it with --slot-save-path"
        raise ApiError(501, message, "not_supported_error", code="not_supported")
    if not 0 <= id_slot < state.engine.n_slots:
        raise InvalidRequestError(f"there is no slot {id_slot}", "id_slot")
    if action == "erase":
        n_erased = await asyncio.wrap_future(state.engine.slots.erase(owner, id_slot))
        return ErasedSlot(id_slot=id_slot, n_erased=n_erased)
    body = await read_body(request, SlotFileBody)
    assert isinstance(body, SlotFileBody)
    check_name(body.filename)
    files = SlotFiles(state.engine, folder)
    act = save if action == "save" else restore
    return await act(state, files, owner, id_slot, body.filename)


async def save(state: ServerState, files: SlotFiles, owner: str, id_slot: int, filename: str) -> SavedSlot:
    began = time.monotonic()
    copied = await asyncio.wrap_future(state.engine.slots.copy(owner, id_slot))
    if copied is None:
        raise InvalidRequestError(f"slot {id_slot} has nothing to save: it is empty, or has lost it", "id_slot")
    if min(copied.prefix.tokens) < 0:
        # Their tokens are this process's: in another they would stand for other pictures.
        message = f"slot {id_slot} has pictures or sounds, which are not saved"
        raise ApiError(501, message, "not_supported_error", code="not_supported")
    n_written = await asyncio.to_thread(files.save, owner, filename, copied)
    return SavedSlot(
        id_slot=id_slot,
        filename=filename,
        n_saved=copied.prefix.n_tokens,
        n_written=n_written,
        timings={"save_ms": ms_since(began)},
    )


async def restore(state: ServerState, files: SlotFiles, owner: str, id_slot: int, filename: str) -> RestoredSlot:
    began = time.monotonic()
    copied, n_read = await asyncio.to_thread(files.read, owner, filename)
    if not await asyncio.wrap_future(state.engine.slots.fill(owner, id_slot, copied)):
        raise ApiError(503, "there is no room to restore the slot now", "unavailable_error", code="no_room")
    return RestoredSlot(
        id_slot=id_slot,
        filename=filename,
        n_restored=copied.prefix.n_tokens,
        n_read=n_read,
        timings={"restore_ms": ms_since(began)},
    )


def ms_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)
