"""A thread for calls that the engine thread does not wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

Call = Callable[[], object]


class WorkThread:
    """Makes calls one after the other; none may raise.

    An executor of the standard library would take no more calls, and wait for those that it has, as soon as the main
    thread ends. But other threads may still use the engine then.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=work, args=(self._calls,), name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Call) -> None:
        """Have a call made; it is not made after `close`."""
        self._calls.put(call)

    def close(self, *, finish: bool = False) -> None:
        """Finish the call that is being made and, with `finish`, those that wait; make no other. Idempotent."""
        while not finish:
            try:
                self._calls.get_nowait()
            except Empty:
                break
        self._calls.put(None)
        self._thread.join()


def work(calls: SimpleQueue[Call | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call
