"""The first and the last calls of the engine thread, and the end of an engine that was never closed.

Nothing here refers to an engine, so that a dropped engine is collected, and its thread ends.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pyllmcancel.errors import CoreAbortedError

if TYPE_CHECKING:
    import weakref

    from pyllmcancel.engine.loop import EngineLoop
    from pyllmcancel.requests.watcher import Watcher

logger = logging.getLogger("pyllmcancel.engine")

# The memory that is freed when the engine thread dies, and the number of attempts to end its requests then. The thread
# may have died of a lack of memory, and ending requests takes some.
RESERVE = 8 << 20
LAST_ATTEMPTS = 3
LAST_WORDS_SECONDS = 2.0


class Closable(Protocol):
    """An engine."""

    def close(self) -> None: ...


def work(loop: EngineLoop, stopped: Future[None]) -> None:
    """Do the work of the engine thread; `stopped` is resolved in any case."""
    reserve = [bytes(RESERVE)]
    try:
        loop.run()
    except BaseException as error:
        # This is a defect of ours, or a lack of memory. Nobody may wait for ever: every request ends with an error, and
        # the health check fails.
        reserve.clear()
        bury(loop, error)
        with suppress(InvalidStateError):  # another thread may be in `say_last_words`
            stopped.set_exception(error)
    else:
        stopped.set_result(None)


def say_last_words(loop: EngineLoop, stopped: Future[None], why: str) -> None:
    """End what is left, and give its readers a moment. The compiled core ends the process when this function returns.

    The calling thread is in the middle of a step: it is the engine thread, or one of the core's. While a step is ahead,
    the engine thread may be at work in Python. An ending may then be sent twice, but each is sent.
    """
    died_of = CoreAbortedError(why)
    bury(loop, died_of)
    with suppress(InvalidStateError):
        stopped.set_exception(died_of)
    threading.Event().wait(LAST_WORDS_SECONDS)  # other threads write the endings to sockets meanwhile


def bury(loop: EngineLoop, died_of: BaseException) -> None:
    """End what is left; never raises."""
    for _ in range(LAST_ATTEMPTS):
        with suppress(Exception):
            logger.critical("the engine thread died", exc_info=died_of)
            break
    for _ in range(LAST_ATTEMPTS):
        with suppress(Exception):
            loop.bury(died_of)
            break


def end_unclosed(engine: weakref.ref[Closable], watcher: Watcher, pid: int) -> None:
    """End an engine that was not closed: it was dropped, or the interpreter ends."""
    if os.getpid() != pid:
        return
    if (left := engine()) is not None:
        # The engine thread must not be in the compiled core when the interpreter ends, which never gives the GIL back.
        left.close()
    else:
        # The garbage collector may have been called anywhere, maybe with a lock held that closing would wait for.
        watcher.drop_engine()
    warnings.warn("an engine was never closed", ResourceWarning, stacklevel=2)
