"""The supersede keys: under each key of an owner at most one live request, the newest.

Not synchronised: the registry guards it, and the other tables, with one lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyllmcancel.request import Request


class Superseding(NamedTuple):
    """The older request of a key, which is to be cancelled, and the newer one, which is installed."""

    older: Request
    newer: Request


class SupersedeKeys:
    """Which request is the newest under each key."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Request] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def newest(self, owner: str, key: str) -> Request | None:
        return self._newest.get((owner, key))

    def rival(self, request: Request) -> Request | None:
        """The request that holds the key of `request` now."""
        return None if request.supersede is None else self.newest(request.owner, request.supersede)

    def install(self, request: Request) -> Superseding | None:
        """Have the key of `request`, if it has one, name the newer of its two requests.

        Newer is the one that arrived later: a request that took longer to prepare must not supersede one that its
        client sent after it.
        """
        if request.supersede is None:
            return None
        rival = self.rival(request)
        if rival is not None and rival.arrived_at > request.arrived_at:
            return Superseding(request, rival)
        self._newest[request.owner, request.supersede] = request
        return None if rival is None else Superseding(rival, request)

    def remove(self, request: Request) -> None:
        """Forget an ended request, unless a newer one has taken its place."""
        if request.supersede is not None and self.rival(request) is request:
            del self._newest[request.owner, request.supersede]
