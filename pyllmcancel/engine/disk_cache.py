"""`--cache-disk`: the folder in which prefixes survive a restart, from the load of an engine to its end."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pyllmcancel.engine.state_identity import HASHES, state_identity
from pyllmcancel.errors import UsageError, error_text
from pyllmcancel.scheduling.disk_floor import DiskFloor
from pyllmcancel.scheduling.prefix_folder import PrefixFolder

if TYPE_CHECKING:
    from pyllmcancel._native import Context
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.scheduling.scheduler import Scheduler

logger = logging.getLogger("pyllmcancel.engine")

# The wait for the hash of a model's file, if there may be prefixes of it. After that, they are found later.
IDENTITY_SECONDS = 10.0
LAST_WRITES_SECONDS = 10.0


def disk_floor(context: Context, config: EngineConfig, native: Any) -> DiskFloor | None:
    """Open the folder; None if none is configured. If the folder cannot be used, a warning says so, and the engine runs
    without it: a cache is not worth an outage.
    """
    if config.cache_disk is None:
        return None
    if not context.can_copy:
        logger.warning("no prefixes are kept on disk: without flash attention they cannot be copied")
        return None
    folder = config.cache_disk
    try:
        files = PrefixFolder(folder, config.cache_disk_mib << 20)
    except UsageError as error:
        logger.warning("no prefixes are kept on disk: %s", error)
        return None
    except OSError as error:
        logger.warning("no prefixes are kept on disk: %s cannot be used: %s", folder, error_text(error))
        return None
    disk = DiskFloor(
        files, partial(state_identity, context, config, native, folder / HASHES), native.SwappedPrefix.blank
    )
    if len(files):
        disk.wait_until_known(IDENTITY_SECONDS)
    return disk


def close_disk(disk: DiskFloor, scheduler: Scheduler) -> None:
    """Write what is at rest to the disk, as far as that takes seconds; called by the engine thread, at its end."""
    end = time.monotonic() + LAST_WRITES_SECONDS
    if scheduler.cache.has_unsaved:
        disk.wait_until_known(LAST_WRITES_SECONDS)
    while disk.wait_until_free(max(0.0, end - time.monotonic())) and scheduler.maintain_idle():
        pass
    disk.close()
