"""The sockets, the storage of responses and the tracing, which are opened before anything is loaded."""

from __future__ import annotations

import argparse
import errno
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyllmcancel.cli.failures import Failure
from pyllmcancel.errors import Error, UsageError
from pyllmcancel.server.config import Storage
from pyllmcancel.server.http.listening import Listener, listen, raise_file_limit
from pyllmcancel.server.responses.storage.store import Store

if TYPE_CHECKING:
    from pyllmcancel.server.running.tracing import Tracing

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
    """Open the store; StoreError if its file was `named`, and cannot be used. Else memory takes its place."""
    if storage is None:
        return None
    try:
        return Store(*storage)
    except Error as error:
        if named:
            raise
        logger.warning("%s; responses and batches are stored in memory only", error)
        return Store(*storage._replace(path=None))


def default_path(port: int) -> Path | None:
    """Return the usual file of a port's server, by XDG's rules for state; None if there is no such folder."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder / "pyllmcancel" / f"responses-{port}.db"


def open_listeners(arguments: argparse.Namespace) -> list[Listener]:
    """Return sockets that listen on all addresses; Failure if there are none."""
    raise_file_limit()
    try:
        return listen(arguments.host, arguments.port)
    except OSError as error:
        advice = "; --port chooses another port" if error.errno == errno.EADDRINUSE else ""
        raise Failure(f"{error.strerror}{advice}", 1) from None


def open_tracing(*, wanted: bool) -> Tracing | None:
    """Return the tracing of requests, if the option asks for it; UsageError if it cannot be started."""
    if not wanted:
        return None
    try:
        from pyllmcancel.server.running.tracing import Tracing
    except ModuleNotFoundError as error:
        raise UsageError(f"--otel needs {error.name}: pip install 'pyllmcancel[otel]'") from None
    try:
        return Tracing()
    except ValueError as error:
        raise UsageError(f"--otel: a variable of OpenTelemetry has a wrong value: {error}") from None
