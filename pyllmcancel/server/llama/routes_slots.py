"""llama-server's ``POST /slots/{id}?action=save|restore|erase``, and its files in the folder of `--slot-save-path`.

The engine thread copies, between two steps; files are read and written by other threads. With API keys each owner has
a folder in that folder, and the files say whose they are. `pyllmcancel.engine.state_identity` says what else has to be
the same.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request

from pyllmcancel.errors import InvalidRequestError, UsageError
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.scheduling.prefix_file import DamagedFileError, head_of, read_head, read_states, write
from pyllmcancel.scheduling.swap_space import Fetched
from pyllmcancel.server.bodies import read_body
from pyllmcancel.server.errors.responses import ApiError, unsupported
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.llama.body import SlotFileBody
from pyllmcancel.server.openapi.description import answers, asks, errors
from pyllmcancel.server.state import ServerState, state_of
from pyllmcancel.server.wire.fields import Answer

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine


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
    state, owner = state_of(request), exchange_of(request.scope).owner
    folder = state.config.slot_save_path
    if folder is None:
        raise unsupported("this server does not save slots: start it with --slot-save-path")
    if not 0 <= id_slot < state.engine.n_slots:
        raise InvalidRequestError(f"there is no slot {id_slot}", "id_slot")
    if action == "erase":
        n_erased = await asyncio.wrap_future(state.engine.slots.erase(owner, id_slot))
        return ErasedSlot(id_slot=id_slot, n_erased=n_erased)
    body = (await read_body(request, SlotFileBody)).body
    act = save if action == "save" else restore
    path = path_in(folder, owner, body.filename)
    return await act(state, folder, owner, id_slot, path)


async def save(state: ServerState, folder: Path, owner: str, id_slot: int, path: Path) -> SavedSlot:
    began = time.monotonic()
    copied = await asyncio.wrap_future(state.engine.slots.copy(owner, id_slot))
    if copied is None:
        raise InvalidRequestError(f"slot {id_slot} has nothing to save: it is empty, or has lost it", "id_slot")
    if min(copied.prefix.tokens) < 0:
        # Their tokens are this process's: in another they would stand for other pictures.
        raise unsupported(f"slot {id_slot} has pictures or sounds, which are not saved")
    n_written = await asyncio.to_thread(write_slot, state.engine, folder, path, copied)
    return SavedSlot(
        id_slot=id_slot,
        filename=path.name,
        n_saved=copied.prefix.n_tokens,
        n_written=n_written,
        timings={"save_ms": ms_since(began)},
    )


async def restore(state: ServerState, folder: Path, owner: str, id_slot: int, path: Path) -> RestoredSlot:
    began = time.monotonic()
    copied, n_read = await asyncio.to_thread(read_slot, state.engine, folder, path, owner)
    if not await asyncio.wrap_future(state.engine.slots.fill(owner, id_slot, copied)):
        raise ApiError(503, "there is no room to restore the slot now", "unavailable_error", code="no_room")
    return RestoredSlot(
        id_slot=id_slot,
        filename=path.name,
        n_restored=copied.prefix.n_tokens,
        n_read=n_read,
        timings={"restore_ms": ms_since(began)},
    )


def ms_since(began: float) -> float:
    return round((time.monotonic() - began) * 1000, 3)


# Names that no system gives a meaning of its own; those with a point in front are ours.
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff\ud800-\udfff]|^[. ]|[. ]$|\.\.')
MAX_NAME = 255  # bytes
MAX_FILES = 256  # of one owner
HASHES = ".hashes.json"


def write_slot(engine: Engine, folder: Path, path: Path, copied: Fetched) -> int:
    """Write a prefix to a file, which may be there already; returns its bytes. ApiError 507 if there is no room."""
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if not path.exists() and len(list(path.parent.iterdir())) >= MAX_FILES:
            message = f"there are {MAX_FILES} files already: save under one of their names"
            raise ApiError(507, message, "server_error", "filename", code="insufficient_storage")
        identity = engine.slots.state_identity(folder / HASHES)
        return write(path, head_of(copied.prefix, identity, copied.holder), copied.prefix)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = "insufficient_storage" if full else "save_failed"
        message = f"the slot could not be saved: {error.strerror}"
        raise ApiError(507 if full else 500, message, "server_error", code=code) from error


def read_slot(engine: Engine, folder: Path, path: Path, owner: str) -> tuple[Fetched, int]:
    """Return the prefix of a file, and the file's bytes. InvalidRequestError if there is no such file of this
    owner, model, build and kind of cells, or it is damaged.
    """
    try:
        if not path.is_file():  # opening a pipe would wait for its other end
            raise FileNotFoundError
        with path.open("rb") as file:
            head = read_head(file)
            if head.owner != owner:
                raise cannot_restore("the file is another owner's")
            if head.identity != engine.slots.state_identity(folder / HASHES):
                raise cannot_restore("the file was saved with another model, build, or kind of cells")
            if head.n_tokens > engine.n_ctx:
                raise cannot_restore(f"its {head.n_tokens:,} tokens do not fit into the context")
            prefix = read_states(file, head, engine.slots.blank_prefix)
            size = file.tell()
    except FileNotFoundError:
        raise cannot_restore("there is no such file") from None
    except (DamagedFileError, UsageError) as error:
        raise cannot_restore(str(error)) from error
    except OSError as error:
        raise cannot_restore(error.strerror or "the file cannot be read") from error
    if prefix is None:
        raise ApiError(503, "there is no memory to restore the slot", "server_error", code="no_memory")
    return Fetched(prefix, head.holder), size


def path_in(folder: Path, owner: str, filename: str) -> Path:
    """Return a file's path; InvalidRequestError for a name that is not one of a file in a folder, on any system."""
    if FORBIDDEN.search(filename) or not 0 < len(filename.encode()) <= MAX_NAME:
        raise InvalidRequestError("the filename is invalid", "filename")
    own = "" if owner == NO_OWNER else f"owner-{hashlib.sha256(owner.encode()).hexdigest()[:16]}"
    return folder / own / filename


def cannot_restore(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the slot cannot be restored: {why}", "filename")
