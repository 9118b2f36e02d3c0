"""Requests that wait for a slot, in the order of their arrival.

Taking a request out of here is how its ownership changes hands: the engine thread takes the oldest to run it, a
canceller withdraws one to end it. The thread that takes it out is the only one that may end it.

Not synchronised: the registry guards it, and the session map, with one lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.request import Request


class WaitingQueue:
    """A first-in first-out queue from which any member can be withdrawn in constant time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._requests: dict[str, Request] = {}  # a dict keeps the order of insertion

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, request: Request) -> bool:
        return self._requests.get(request.id) is request

    def append(self, request: Request) -> None:
        self._requests[request.id] = request

    def oldest(self) -> Request | None:
        return next(iter(self._requests.values()), None)

    def withdraw(self, request: Request) -> bool:
        """Take `request` out; False if it is not, or no longer, here."""
        if request not in self:
            return False
        del self._requests[request.id]
        return True
