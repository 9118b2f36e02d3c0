"""The encoding of pictures, in a thread of its own beside the steps of the model.

A choice whose next token is of a picture that is not encoded keeps its slot and waits, while others compute. What is
encoded takes turns with the steps (``native/devices/turns.hpp``), so others wait for a few milliseconds at a time, and
not for a whole picture. A picture that lies in a reused prefix is not encoded at all.

A cancel ends an encoding inside its graph, and nothing of it is kept, unless another request waits for the same one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from pyllmcancel.errors import error_text

if TYPE_CHECKING:
    from pyllmcancel._native import Audience, CancelFlag, MediaChunk, MediaEncoder
    from pyllmcancel.requests.request import Choice, Request

logger = logging.getLogger("pyllmcancel.engine")


class Encoding:
    """The pictures that running requests wait for. Used by the engine thread, which starts the other one. The other one
    calls `wake` when a picture is encoded, or cannot be. Without an `encoder` no choice has pictures. `native` is the
    module that has `Audience`.
    """

    def __init__(self, encoder: MediaEncoder | None, native: Any) -> None:
        self._encoder = encoder
        self._native = native
        self.wake: Callable[[], object] = lambda: None
        self._changed = threading.Condition()
        # All guarded by the condition's lock.
        self._wanted: dict[Request, list[MediaChunk]] = {}  # the next request is first
        self._failed: dict[Request, str] = {}
        self._running: MediaChunk | None = None
        self._audience: Audience | None = None
        self._thread: threading.Thread | None = None

    def want(self, choice: Choice) -> None:
        """Have the pictures encoded that a choice which has got a slot is going to compute."""
        missing = choice.unencoded
        if not missing:
            return
        request = choice.request
        with self._changed:
            waiting = self._wanted.setdefault(request, [])
            waiting += [chunk for chunk in dict.fromkeys(missing) if chunk not in waiting]
            if self._audience is not None and self._running in waiting:
                self._audience.join(flag_of(request))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="pyllmcancel-encode", daemon=True)
                self._thread.start()

    def withdraw(self, request: Request) -> None:
        """Encode nothing for a request that ends, and return when nothing is being encoded for it."""
        with self._changed:
            self._failed.pop(request, None)
            waiting = self._wanted.pop(request, [])
            if self._running is None or self._running not in waiting or self._is_wanted(self._running):
                return
            assert self._audience is not None
            self._audience.leave()
            running = self._running
            self._changed.wait_for(lambda: self._running is not running)

    def take_failed(self, requests: Iterable[Request]) -> list[tuple[Request, str]]:
        """Return those of these requests for which a picture could not be encoded, and why."""
        with self._changed:
            found = [(request, self._failed.pop(request)) for request in requests if request in self._failed]
            for request, _ in found:
                self._wanted.pop(request, None)
            return found

    def _is_wanted(self, chunk: MediaChunk) -> bool:
        return any(chunk in waiting for waiting in self._wanted.values())

    def _work(self) -> None:
        """Encode in turns of the requests, until nothing is wanted."""
        while (begun := self._begin()) is not None:
            assert self._encoder is not None
            chunk, audience = begun
            error = None
            try:
                self._encoder.encode(chunk, audience)
            except Exception as failure:
                logger.warning("a picture could not be encoded: %s", error_text(failure))
                error = str(failure)
            self._end(chunk, error)
            self.wake()

    def _begin(self) -> tuple[MediaChunk, Audience] | None:
        with self._changed:
            for request in [one for one, waiting in self._wanted.items() if not self._left_of(one, waiting)]:
                del self._wanted[request]
            if not self._wanted:
                self._thread = None
                return None
            request = next(iter(self._wanted))
            waiting = self._wanted.pop(request)
            self._wanted[request] = waiting
            self._running = waiting[0]
            self._audience = self._native.Audience()
            for other, wanted in self._wanted.items():
                if self._running in wanted:
                    self._audience.join(flag_of(other))
            return self._running, self._audience

    @staticmethod
    def _left_of(request: Request, waiting: list[MediaChunk]) -> list[MediaChunk]:
        """Drop what is encoded by now; what a cancelled request waits for is not wanted."""
        waiting[:] = [] if request.cancellation.requested else [chunk for chunk in waiting if not chunk.encoded]
        return waiting

    def _end(self, chunk: MediaChunk, error: str | None) -> None:
        with self._changed:
            for request, waiting in list(self._wanted.items()):
                if error is not None and chunk in waiting:
                    self._failed[request] = error
                    del self._wanted[request]
            self._running = self._audience = None
            self._changed.notify_all()


def flag_of(request: Request) -> CancelFlag:
    return cast("CancelFlag", request.cancellation.flag)
