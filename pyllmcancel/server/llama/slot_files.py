"""The files of ``POST /slots/{id}?action=save|restore``, in the folder of `--slot-save-path`.

An owner's files are its own: with API keys each owner has a folder in that folder, and the files say whose they are.
`pyllmcancel.engine.state_identity` says what else has to be the same.
"""

from __future__ import annotations

import errno
import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyllmcancel.errors import InvalidRequestError, UsageError
from pyllmcancel.requests.request import NO_OWNER
from pyllmcancel.scheduling.prefix_file import DamagedFileError, head_of, read_head, read_states, write
from pyllmcancel.scheduling.swap_space import Fetched
from pyllmcancel.server.errors.responses import ApiError

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine

# Names that no system gives a meaning of its own; those with a point in front are ours.
FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|\uff0e\u2215\u2216\ufffd\ufeff\ud800-\udfff]|^[. ]|[. ]$|\.\.')
MAX_NAME = 255  # bytes
MAX_FILES = 256  # of one owner
HASHES = ".hashes.json"


class SlotFiles:
    """Blocks the calling thread, which should not be the event loop's."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder

    @property
    def _identity(self) -> str:
        return self._engine.slots.state_identity(self._folder / HASHES)

    def save(self, owner: str, filename: str, copied: Fetched) -> int:
        """Write a prefix to a file, which may be there already; returns its bytes. ApiError 507 if there is no room."""
        path = self._path(owner, filename)
        if min(copied.prefix.tokens) < 0:  # a picture's: only this process knows which one
            raise InvalidRequestError("a slot with pictures or sounds cannot be saved", "id_slot")
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            if not path.exists() and len(list(path.parent.iterdir())) >= MAX_FILES:
                message = f"there are {MAX_FILES} files already: save under one of their names"
                raise ApiError(507, message, "server_error", "filename", code="insufficient_storage")
            return write(path, head_of(copied.prefix, self._identity, copied.holder), copied.prefix)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = "insufficient_storage" if full else "save_failed"
            message = f"the slot could not be saved: {error.strerror}"
            raise ApiError(507 if full else 500, message, "server_error", code=code) from error

    def read(self, owner: str, filename: str) -> tuple[Fetched, int]:
        """Return the prefix of a file, and the file's bytes.

        Raises
        ------
        InvalidRequestError
            There is no such file of this owner, model, build and kind of cells, or it is damaged.
        """
        path = self._path(owner, filename)
        if not path.is_file():  # opening a pipe would wait for its other end
            raise cannot_restore("there is no such file")
        try:
            with path.open("rb") as file:
                head = read_head(file)
                if head.owner != owner:
                    raise cannot_restore("the file is another owner's")
                if head.identity != self._identity:
                    raise cannot_restore("the file was saved with another model, build, or kind of cells")
                if head.n_tokens > self._engine.n_ctx:
                    raise cannot_restore(f"its {head.n_tokens:,} tokens do not fit into the context")
                prefix = read_states(file, head, self._engine.slots.blank_prefix)
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

    def _path(self, owner: str, filename: str) -> Path:
        check_name(filename)
        if owner == NO_OWNER:
            return self._folder / filename
        return self._folder / f"owner-{hashlib.sha256(owner.encode()).hexdigest()[:16]}" / filename


def check_name(filename: str) -> None:
    """Raise InvalidRequestError for a name that is not one of a file in a folder, on any system."""
    size = 0
    with suppress(UnicodeEncodeError):
        size = len(filename.encode())
    if not 0 < size <= MAX_NAME or FORBIDDEN.search(filename):
        raise InvalidRequestError("the filename is invalid", "filename")


def cannot_restore(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the slot cannot be restored: {why}", "filename")
