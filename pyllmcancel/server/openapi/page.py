"""The text of ``/openapi.json``, which another process writes at the first request for it.

Writing the page takes two seconds of a processor, all with the GIL: in this process it would hold up every stream.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from pyllmcancel.server.errors.responses import ApiError

LIMIT_SECONDS = 120.0  # on a machine whose processors are all busy with models


def writer(*, ui: bool, asks_for_keys: bool) -> Sequence[str]:
    """Return the command that writes the page of a server with or without a live page and API keys."""
    options = (str(int(ui)), str(int(asks_for_keys)))
    return (sys.executable, "-P", "-m", "pyllmcancel.server.openapi.page_process", *options)


class Page:
    """The page, and the process that writes it. Used by the event loop only.

    Parameters
    ----------
    command
        Writes the page to its standard output; see `writer`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._text: bytes | None = None
        self._writing: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """Return the whole page, as JSON.

        Raises
        ------
        ApiError
            With status 503: no process could be started, or it did not end. The next call tries again.
        """
        if self._text is None:
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write(), name="openapi page")
            # All callers share the task, so none of them may cancel it.
            self._text = await asyncio.shield(self._writing)
        return self._text

    async def _write(self) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise unavailable(str(error.strerror)) from error
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                text, _ = await process.communicate()
        except TimeoutError:
            raise unavailable(f"writing it takes longer than {LIMIT_SECONDS:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            status = await process.wait()
        if status != 0:
            raise unavailable("its process failed; the log says why")
        return text

    async def close(self) -> None:
        """End the process, if there is one. Idempotent."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])


def unavailable(why: str) -> ApiError:
    return ApiError(503, f"the page cannot be written now: {why}", "server_error", code="busy")
