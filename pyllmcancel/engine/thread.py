"""The engine thread's first call and its last ones, and the end of an engine that was never closed.

Nothing here refers to an engine: one that is dropped is collected, and its thread ends.
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

# Bytes that are given back when the engine thread dies, and attempts to end its requests then: it may have died of a
# lack of memory, and what it does last takes some.
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
        # A defect of ours, or no memory. Nobody may hang on it: every request ends with an error, and health turns red.
        reserve.clear()
        bury(loop, error)
        with suppress(InvalidStateError):  # the last words may be being said
            stopped.set_exception(error)
    else:
        stopped.set_result(None)


def say_last_words(loop: EngineLoop, stopped: Future[None], why: str) -> None:
    """The compiled core ends the process when this returns: end what is left, and give its readers a moment.

    The thread that calls is in the middle of a step, its engine's own thread or one of the core's. While a step is
    ahead the engine's thread may be at work in Python: an ending may then be told twice, but each is told.
    """
    died_of = CoreAbortedError(why)
    bury(loop, died_of)
    with suppress(InvalidStateError):
        stopped.set_exception(died_of)
    threading.Event().wait(LAST_WORDS_SECONDS)  # for other threads: endings are on their way to sockets


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
        # The engine thread must not be in the compiled core when the interpreter takes the GIL away for good.
        left.close()
    else:
        # Wherever the garbage collector was called, maybe with a lock held that closing would wait for.
        watcher.drop_engine()
    warnings.warn("an engine was never closed", ResourceWarning, stacklevel=2)
