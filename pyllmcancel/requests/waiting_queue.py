"""Requests that wait for a slot: a queue for each owner, and one for each owner's idle requests.

The workload decides which owner is next: for generation in `fair_share`. The order of the owners only breaks ties.

A thread becomes responsible for a request by taking it out of here: the engine thread takes one to run it, a canceller
withdraws one to end it. No other thread may end it then.

Not synchronised: the registry guards it, and the other tables, with one lock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from pyllmcancel.errors import QueueFullError
from pyllmcancel.requests.request import Request


def queue_of(request: Request) -> tuple[str, bool]:
    """Return the queue of a request: idle requests have their own limits, so that they do not get in others' way."""
    return request.owner, request.is_idle


class OwnerQueue(NamedTuple):
    """The requests of one owner that wait, higher priorities first, then in the order of their arrival here; and those
    that the engine thread has taken, and that have not ended.
    """

    waiting: list[Request]
    running: set[Request]


class WaitingQueue:
    """The queues of all owners. One queue has at most `limit` waiting requests, with prompts of `max_tokens` tokens
    together, and `max_running` requests that the engine thread has; None: no limit.
    """

    def __init__(self, limit: int, max_running: int | None = None, max_tokens: int | None = None) -> None:
        self._limit = limit
        self._max_tokens = max_tokens
        self._max_running = max_running
        self._owners: dict[tuple[str, bool], OwnerQueue] = {}  # the one that was last served is last

    def __len__(self) -> int:
        return sum(len(queue.waiting) for queue in self._owners.values())

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(queue.waiting for queue in self._owners.values())

    def __contains__(self, request: Request) -> bool:
        return request in self._waiting_with(request)

    def _waiting_with(self, request: Request) -> list[Request]:
        """Return the waiting requests of the queue that a request belongs to."""
        queue = self._owners.get(queue_of(request))
        return [] if queue is None else queue.waiting

    @property
    def has_foreground(self) -> bool:
        """True if a request could start that is not idle."""
        return not all(request.is_idle for request in self.heads())

    def check(self, request: Request, n_leaving: int) -> None:
        """Raise QueueFullError if a request cannot wait, even after `n_leaving` waiting ones have left."""
        n_waiting = len(self._waiting_with(request))
        if n_waiting - n_leaving < self._limit:
            return
        running = "" if self._max_running is None else f", {self._max_running} may run (max_running)"
        raise QueueFullError(f"{n_waiting} requests are waiting already, {self._limit} may (max_queue){running}")

    def check_tokens(self, request: Request, leaving: Request | None) -> None:
        """Raise QueueFullError if a prompt is too long to wait beside others, once `leaving` has left."""
        if self._max_tokens is None:
            return
        n_waiting = sum(one.n_prompt_tokens for one in self._waiting_with(request) if one is not leaving)
        if n_waiting and n_waiting + request.n_prompt_tokens > self._max_tokens:
            raise QueueFullError(
                f"prompts of {n_waiting:,} tokens are waiting already, {self._max_tokens:,} may (max_queue_tokens)"
            )

    def append(self, request: Request) -> None:
        queue = self._owners.setdefault(queue_of(request), OwnerQueue([], set()))
        insort(queue.waiting, request, key=lambda one: -one.priority)

    def heads(self) -> list[Request]:
        """Return the next request of each queue that is below `max_running`; the one last served is last."""
        most = self._max_running
        queues = (queue for queue in self._owners.values() if most is None or len(queue.running) < most)
        return [queue.waiting[0] for queue in queues if queue.waiting]

    def take(self, request: Request) -> None:
        """Let the request run from now on, and move its owner behind the others."""
        queue = self._owners.pop(queue_of(request))
        self._owners[queue_of(request)] = queue
        queue.waiting.remove(request)
        queue.running.add(request)

    def withdraw(self, request: Request) -> bool:
        """Take `request` out; False if it is not, or no longer, here."""
        if request not in self:
            return False
        self._waiting_with(request).remove(request)
        return True

    def forget(self, request: Request) -> None:
        """Forget a request that has ended."""
        queue = self._owners.get(queue_of(request))
        if queue is not None:
            queue.running.discard(request)
            if not (queue.running or queue.waiting):
                del self._owners[queue_of(request)]
