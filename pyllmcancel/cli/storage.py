"""``--store``: the storage of responses, which is opened before the server listens to anybody."""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from pyllmcancel.errors import Error
from pyllmcancel.server.config import Storage
from pyllmcancel.server.responses.storage.store import Store

logger = logging.getLogger("pyllmcancel.server")

DAY = 86_400.0


def storage_of(arguments: argparse.Namespace) -> Storage | None:
    """Return the storage that ``--store`` describes, without opening the file."""
    limits = arguments.store_max_age * DAY, arguments.store_max_size << 20
    match arguments.store:
        case "off":
            return None
        case "memory":
            return Storage(None, *limits)
        case None:
            return Storage(default_path(arguments.port), *limits)
        case path:
            return Storage(Path(path), *limits)


def open_store(storage: Storage | None, *, named: bool) -> Store | None:
    """Open the store. If nobody has `named` a file and the usual one cannot be used, store in memory, and log a
    warning.

    Raises
    ------
    StoreError
        The file that was named cannot be used.
    """
    if storage is None:
        return None
    try:
        return Store(*storage)
    except Error as error:
        if named:
            raise
        logger.warning("%s; responses are stored in memory only", error)
        return Store(*storage._replace(path=None))


def on_disk(folder: Path | None, name: str) -> list[str]:
    """Return the option of a server's own folder of prefixes, in ``--cache-disk``, which one server uses at a time."""
    return [] if folder is None else ["--cache-disk", str(folder / name)]


def default_path(port: int) -> Path | None:
    """Return the usual file of the server on a port, by XDG's rules for a program's state; None if there is no such
    folder. A file has one server, and so has a port.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder / "pyllmcancel" / f"responses-{port}.db"
