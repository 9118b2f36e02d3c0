"""The results of the registry's critical sections."""

from __future__ import annotations

from typing import NamedTuple

from pyllmcancel.requests.request import Request


class Counts(NamedTuple):
    """Live requests, and sessions that have any. Cancelled requests are counted apart until they have ended."""

    waiting: int
    running: int
    cancelling: int
    sessions: int


class Accepted(NamedTuple):
    """The effects of an arrival, or of an acceptance.

    `cancelled` are the requests that it cancelled. Of two requests with one key that is the earlier one, which may be
    the new request itself. The new request is also among them if it was held, or if its family had been cancelled.
    `withdrawn` are those of them that nobody was responsible for: the caller now is, and has to end them.
    """

    cancelled: tuple[Request, ...]
    withdrawn: tuple[Request, ...]
