"""Loading an engine in a thread of its own, after fetching a model that is not on this machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyllmcancel.engine.engine import Engine

if TYPE_CHECKING:
    from pyllmcancel.config import EngineConfig
    from pyllmcancel.requests.observer import Observer

logger = logging.getLogger("pyllmcancel.engine.loading")

PROGRESS_EVERY_SECONDS = 1.0
# After that the process ends without the load's end: no request can have been served.
PATIENCE_SECONDS = 0.5


# Returns a file, fetched first if need be, or None. It takes `progress`, as `Engine.load` does, and raises
# LoadCancelled when that returns False.
Fetch = Callable[[Callable[[float], bool]], Path | None]


class Loading:
    """A load, which begins at once. Every method may be called from any thread.

    `fetches` find files that `config` does not name, by its fields, in this order. `load` loads the engine as
    `Engine.load` does.
    """

    def __init__(
        self,
        config: EngineConfig,
        observer: Observer,
        *,
        fetches: Mapping[str, Fetch] = {},
        load: Callable[..., Engine] = Engine.load,
    ) -> None:
        # Never cancelled: it ends with the engine, or with whatever exception `load` raised.
        self.future: Future[Engine] = Future()
        self.future.set_running_or_notify_cancel()  # a waiter that gives up must not cancel it
        self._fetches = fetches
        # These are written by the loading thread: the stage, its start in monotonic seconds, its progress in [0, 1].
        self.stage: Literal["downloading", "loading"] = "downloading" if self._fetches else "loading"
        self.began = self._reported_at = time.monotonic()
        self.progress = 0.0
        self._given_up = False  # sticky; read by the loading thread
        self._config = config
        self._observer = observer
        self._load = load
        # Not a daemon: the end of the interpreter would stop a daemon thread in the middle of llama.cpp.
        self._thread = threading.Thread(target=self._run, name="pyllmcancel-loading")
        self._thread.start()

    def give_up(self) -> None:
        """Have the load fail with LoadCancelled as soon as possible, without waiting.

        A load that is already making the context still results in an engine.
        """
        self._given_up = True

    def gives_up_soon(self) -> bool:
        """Give up, and wait a moment; return whether the load has ended.

        A single call of llama.cpp's, or of the system's, can neither be cancelled nor waited for.
        """
        self.give_up()
        self._thread.join(PATIENCE_SECONDS)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Give up, wait, and close the engine if there is one. Idempotent."""
        self.give_up()
        self._thread.join()
        if self.future.exception() is None:
            self.future.result().close()

    def _run(self) -> None:
        try:
            config = self._config
            for name, fetch in self._fetches.items():
                found: Any = {name: fetch(self._on_fetched)}
                config = replace(config, **found)
            if self._fetches:
                self.stage, self.progress = "loading", 0.0
                self.began = self._reported_at = time.monotonic()
            logger.info("loading %s", config.model or "the packaged model")
            self.future.set_result(self._load(config, observer=self._observer, progress=self._on_progress))
        except BaseException as error:
            # Any exception: the server waits for the future.
            self.future.set_exception(error)

    def _on_fetched(self, fraction: float) -> bool:
        self.progress = fraction
        return not self._given_up

    def _on_progress(self, fraction: float) -> bool:
        self.progress = fraction
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_EVERY_SECONDS:
            self._reported_at = now
            logger.info("loading: %.0f %%", fraction * 100)
        return not self._given_up
