"""The intent to cancel one request: from any thread, sticky, first reason wins, a no-op after the end.

Two things are kept apart. *Cancelling* is done by this module, which records a reason and raises the request's own
flag. *Aborting* may be done by the compiled core when it sees that flag in the middle of a step.
"""

from __future__ import annotations

import threading
import time
from enum import StrEnum
from typing import Protocol


class CancelReason(StrEnum):
    """The reason why a request was cancelled. The list is closed."""

    # A new reason needs changes in other files: see docs/architecture.md, "Where to add something".
    DISCONNECT = "disconnect"
    STALLED = "stalled"
    SUPERSEDED = "superseded"
    EXPLICIT = "explicit"
    DEADLINE = "deadline"
    SHUTDOWN = "shutdown"


class Deadline(StrEnum):
    """The deadlines of a request. Each is named as the field that sets its seconds."""

    ALL = "timeout"  # from the arrival to the end
    QUEUE = "queue_timeout"  # from the arrival to the first slot
    IDLE = "idle_timeout"  # between two tokens


def reason_text(reason: CancelReason, deadline: Deadline | None) -> str:
    """Return a reason for people, with the deadline that has passed unless that is the usual one."""
    return reason if deadline in (None, Deadline.ALL) else f"{reason}, {deadline}"


class Flag(Protocol):
    """A flag that the compiled core reads between graph nodes, and inside long ones. It can only be raised."""

    def set(self) -> None: ...


class Cancellation:
    """The state of one request's cancel: its reason and time if it came, and whether it is too late for one.

    A request ends exactly once, when the responsible thread calls :meth:`seal`. `seal` and :meth:`request` are atomic
    with respect to each other, so either the cancel came first and the request ends as cancelled, or the cancel came
    too late and its caller learns that. There is no third outcome.
    """

    __slots__ = ("_deadline", "_flag", "_lock", "_reason", "_requested_at", "_sealed")

    def __init__(self, flag: Flag) -> None:
        self._lock = threading.Lock()
        self._flag = flag
        # Written once, under the lock, by the first thread that cancels.
        self._reason: CancelReason | None = None
        self._deadline: Deadline | None = None
        self._requested_at: float | None = None
        # Written once, under the lock, by the thread that is responsible for the request.
        self._sealed = False

    @property
    def flag(self) -> Flag:
        return self._flag

    @property
    def reason(self) -> CancelReason | None:
        return self._reason

    @property
    def deadline(self) -> Deadline | None:
        """The deadline that has passed, if that was the reason and is known."""
        return self._deadline

    @property
    def requested(self) -> bool:
        return self._reason is not None

    @property
    def requested_at(self) -> float | None:
        """The time of the first cancel, on the monotonic clock, in seconds."""
        return self._requested_at

    @property
    def sealed(self) -> bool:
        return self._sealed

    def request(self, reason: CancelReason, deadline: Deadline | None = None) -> bool:
        """Ask for cancellation, because of a `deadline` if one has passed.

        Returns
        -------
        bool
            True if this call decided the request's fate; False if it had been cancelled, or had ended, before.
        """
        with self._lock:
            if self._sealed or self._reason is not None:
                return False
            # The reason is set before the flag, so that a thread that sees the flag finds a reason.
            self._requested_at = time.monotonic()
            self._deadline = deadline
            self._reason = reason
            self._flag.set()
            return True

    def refuse(self) -> bool:
        """Close the request to cancels, unless it is cancelled or sealed; return whether this call has closed it."""
        with self._lock:
            if self._sealed or self._reason is not None:
                return False
            self._sealed = True
            return True

    def seal(self) -> CancelReason | None:
        """Close the request to further cancels; returns the reason if one had come before.

        Raises
        ------
        RuntimeError
            The request had been sealed before, and is being ended for the second time.
        """
        with self._lock:
            if self._sealed:
                raise RuntimeError("a request cannot end twice")
            self._sealed = True
            return self._reason
