"""A load that waits for the test, in place of `Engine.load`."""

import threading
import time
from collections.abc import Callable
from typing import Any

from pyllmcancel.engine.engine import Engine
from pyllmcancel.errors import LoadCancelled
from tests.support.http_asgi import LIMIT


class HeldLoad:
    """Tells half of its progress again and again, as llama.cpp does, until it is cancelled or `bring` was called."""

    def __init__(self) -> None:
        self.begun = threading.Event()  # set when the loading thread is in here
        self._released = threading.Event()
        self._result: Engine | BaseException | None = None

    def bring(self, result: Engine | BaseException) -> None:
        """End the load with an engine, or with an error."""
        self._result = result
        self._released.set()

    def __call__(self, config: Any, *, observer: Any, progress: Callable[[float], bool]) -> Engine:
        deadline = time.monotonic() + LIMIT
        while progress(0.5):
            self.begun.set()
            if self._released.wait(0.01):
                break
            assert time.monotonic() < deadline
        else:
            raise LoadCancelled("loading was cancelled")
        progress(1.0)
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result
