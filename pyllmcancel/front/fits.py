"""The memory that models will take, by a short process of their own: it reads a file's header, and loads nothing.

llama.cpp is not in the process in front, and a hostile file ends the process that reads it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyllmcancel.errors import UsageError
from pyllmcancel.front.child import Child
from pyllmcancel.front.spec import Command, Spec
from pyllmcancel.front.worker import LAST_LINES, why_ended

MEASURE = "--fit-print"
WRONG = 2  # the status of a command that says why it cannot serve a model
SECONDS = 60.0  # for a measurement; after that the model is loaded without

logger = logging.getLogger("pyllmcancel.front")

Identity = tuple[object, ...]


class DoesNotFit(Exception):  # noqa: N818 - reads as the event it is
    """The model cannot be loaded; its arguments are the reason, and lines that say more."""


class Fits:
    """Measures models, each once for as long as its files and options stay the same. Used in the event loop only.

    `check` raises OSError or UsageError if a file is obviously no model, in a thread, since disks may be slow.
    """

    def __init__(self, command: Command, folder: Path, check: Callable[[Path], None]) -> None:
        self._command = command
        self._check = check
        self._socket = folder / "none.sock"
        self._known: dict[str, tuple[Identity, int]] = {}

    def known(self, spec: Spec) -> int:
        """Return the bytes of the last measurement, or 0."""
        return self._known.get(spec.name, ((), 0))[1]

    async def need(self, spec: Spec) -> int:
        """Return the bytes that a model will take, with its cells and buffers; 0 if they cannot be measured. DoesNotFit
        if its file is missing, or is none, or is larger than the machine's memory.
        """
        if spec.path is None:
            return 0  # it is not known yet which file its process will find
        try:
            await asyncio.to_thread(self._check, spec.path)
        except (OSError, UsageError) as error:
            raise DoesNotFit(f"the model {spec.name} could not be loaded: {error}", [str(error)]) from None
        its = ((one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns) for one in spec.files)
        identity = spec.options, *its  # it changes when the model's files or options do
        found = self._known.get(spec.name)
        if found is None or found[0] != identity:
            found = self._known[spec.name] = identity, await self._measured(spec)
        return found[1]

    async def _measured(self, spec: Spec) -> int:
        command, environment = self._command(spec, self._socket)
        output: list[str] = []
        child = Child([*command, MEASURE], output.extend, environment)
        try:
            status = await asyncio.wait_for(child.live(), SECONDS)
        except TimeoutError:
            return 0
        lines = [line for line in output if line.strip()]
        if status == 0:
            return sum_of("".join(lines[-1:]))
        if status == WRONG or (status < 0 and status != -signal.SIGKILL):
            _, why = why_ended(spec.name, status, lines, was_loading=True)
            raise DoesNotFit(why, lines[-LAST_LINES:])
        logger.warning("%s could not be measured (status %d): %s", spec.name, status, "".join(lines[-1:]))
        return 0


def sum_of(told: str) -> int:
    """Return the bytes of all parts; 0 if the output is not what is expected."""
    with suppress(ValueError, AttributeError, TypeError):
        parts: dict[str, Any] = json.loads(told)
        return sum(int(parts[name]) for name in ("weights", "cells", "buffers") if name in parts)
    return 0
