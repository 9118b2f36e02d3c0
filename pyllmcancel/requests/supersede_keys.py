"""The supersede keys. Each key of an owner has at most one live request, the newest.

Not synchronised: the registry guards it, and the other tables, with one lock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.requests.holds import LONGEST_PREPARATION

if TYPE_CHECKING:
    from pyllmcancel.requests.request import Rank, Request

MAX_REMEMBERED = 4096  # limit of one owner's keys whose newest request is in another process
MAX_OWNERS = 1024  # limit of owners of such keys


class Superseding(NamedTuple):
    """The older request of a key, which is to be cancelled, and the id of the newer one."""

    older: Request
    by: str


class Mark(NamedTuple):
    """A request of another process, and the time until which it is remembered, on the monotonic clock."""

    rank: Rank
    until: float


class SupersedeKeys:
    """The newest request under each key."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Request] = {}
        self._preparing: dict[tuple[str, str], set[Request]] = {}
        self._elsewhere: dict[str, dict[str, Mark]] = {}  # by owner and key, the last reported one at the end

    def __len__(self) -> int:
        return len(self._newest)

    def newest(self, owner: str, key: str) -> Request | None:
        return self._newest.get((owner, key))

    def prepare(self, request: Request) -> None:
        """Note a request that is not accepted yet: it supersedes none, and is superseded by newer ones."""
        if request.supersede is not None:
            self._preparing.setdefault((request.owner, request.supersede), set()).add(request)

    def preparing(self, owner: str, key: str | None) -> list[Request]:
        """Return the requests under this key that are not accepted yet."""
        return [] if key is None else list(self._preparing.get((owner, key), ()))

    def rival(self, request: Request) -> Request | None:
        """Return the request that holds the key of `request` now."""
        return None if request.supersede is None else self.newest(request.owner, request.supersede)

    def install(self, request: Request) -> Superseding | None:
        """Give the key of `request`, if it has one, to the newer of its two requests.

        The newer request is the one that arrived later. A request that took longer to prepare must not supersede one
        that its client sent later, nor a later one that another process has reported.
        """
        if request.supersede is None:
            return None
        self.remove(request)
        rival = self.rival(request)
        if rival is not None:
            if rival.arrived_at > request.arrived_at:
                return Superseding(request, rival.id)
            # The system's clock may have been set back. Other processes must see the order that is seen here. Otherwise
            # each of three requests in two processes could be superseded by another.
            request.arrived_us = max(request.arrived_us, rival.arrived_us + 1)
        elsewhere = self._remembered(request.owner, request.supersede)
        if elsewhere is not None and elsewhere > request.rank:
            return Superseding(request, elsewhere.id)
        self._newest[request.owner, request.supersede] = request
        return None if rival is None else Superseding(rival, request.id)

    def remove(self, request: Request) -> None:
        """Forget an ended request, unless a newer one has taken its place."""
        if request.supersede is None:
            return
        key = request.owner, request.supersede
        if self._newest.get(key) is request:
            del self._newest[key]
        if key in self._preparing:
            self._preparing[key].discard(request)
            if not self._preparing[key]:
                del self._preparing[key]

    # -- requests of other processes ----------------------------------------------------------------------------------

    def remember(self, owner: str, key: str, rank: Rank) -> None:
        """Remember a request that another process has accepted, because an older one of its key may still be in
        preparation.

        The request is remembered for as long as a preparation may take, unless there are too many. An older request
        does not extend that time: a rank from a wrong clock would never be forgotten while its key is in use.
        """
        now = time.monotonic()
        if owner not in self._elsewhere and len(self._elsewhere) >= MAX_OWNERS:
            self._elsewhere = {one: marks for one, marks in self._elsewhere.items() if _latest(marks) > now}
            if len(self._elsewhere) >= MAX_OWNERS:
                del self._elsewhere[next(iter(self._elsewhere))]
        marks = self._elsewhere.setdefault(owner, {})
        known = marks.get(key)
        if known is None or known.rank < rank or known.until <= now:
            marks.pop(key, None)
            marks[key] = Mark(rank, now + LONGEST_PREPARATION)
        while (oldest := next(iter(marks))) != key and (len(marks) > MAX_REMEMBERED or marks[oldest].until <= now):
            del marks[oldest]

    def newer_than(self, owner: str, key: str, rank: Rank) -> Rank | None:
        """Return the newest known request of the key, here or elsewhere, if it is newer than the one of `rank`."""
        mine = self.newest(owner, key)
        known = (None if mine is None else mine.rank, self._remembered(owner, key))
        newer = [one for one in known if one is not None and one > rank]
        return max(newer, default=None)

    def _remembered(self, owner: str, key: str) -> Rank | None:
        mark = self._elsewhere.get(owner, {}).get(key)
        return None if mark is None or mark.until <= time.monotonic() else mark.rank


def _latest(marks: dict[str, Mark]) -> float:
    """Return the time until which the last of the marks is remembered."""
    return next(reversed(marks.values())).until
