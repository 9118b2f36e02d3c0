"""Reading the API keys again at SIGHUP, without a restart."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from pyllmcancel.errors import Error, UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import FrameType

    from pyllmcancel.server.config import ApiKey, ServerConfig
    from pyllmcancel.server.http.api_keys import KeyRing

    # The keys of clients, and those of administrators. Raises Error or OSError if they cannot be read.
    ReadKeys = Callable[[], tuple[tuple[ApiKey, ...], tuple[str, ...]]]

logger = logging.getLogger("pyllmcancel.server")


class Hangups:
    """The handling of SIGHUP, from the start of the process on: it has the keys read again.

    Made in the main thread, before the keys are read. Without a handler the signal would end a process that is
    starting. If it were ignored, a change of the file after its first reading would be missed.
    """

    def __init__(self, read: ReadKeys) -> None:
        self._read = read
        self._came_early = False  # written by the signal's handler, in the main thread
        signal.signal(signal.SIGHUP, self._remember)

    def _remember(self, _number: int, _frame: FrameType | None) -> None:
        self._came_early = True

    def handled_by(self, loop: asyncio.AbstractEventLoop, keys: KeyRing) -> None:
        """Have each SIGHUP read the keys again from now on, and read them if one has come already."""
        loop.add_signal_handler(signal.SIGHUP, read_again, keys, self._read)
        if self._came_early:
            read_again(keys, self._read)


def read_again(keys: KeyRing, read: ReadKeys) -> None:
    """Replace the keys. If that is impossible, the former keys stay valid, and the log says why."""
    try:
        api_keys, admin_api_keys = read()
        changed = replace(keys.config, api_keys=api_keys, admin_api_keys=admin_api_keys)
        if changed.shared != keys.config.shared:
            # Limits for each owner, and what an owner may see, were decided at the start.
            raise UsageError("a change between one owner and several needs a restart")
        if not changed.shared and owners_of(changed).isdisjoint(owners_of(keys.config)):
            # A single owner sees everything, and an open stream of events outlives the key that it was opened with.
            raise UsageError("another owner in place of the only one needs a restart")
    except (Error, OSError, UnicodeError) as error:
        logger.error("SIGHUP: the API keys could not be read again, and the former ones stay valid: %s", error)
        return
    keys.replace(changed)
    logger.info("SIGHUP: %d API keys of %d owners are valid from now on", len(api_keys), len(owners_of(changed)))


def owners_of(config: ServerConfig) -> set[str]:
    return {key.owner for key in config.api_keys}
