"""The supersede keys. Each key of an owner has at most one live request, the newest.

Not synchronised: the registry guards it, and the other tables, with one lock.
"""

from __future__ import annotations

from typing import NamedTuple

from pyllmcancel.requests.request import Request


class Superseding(NamedTuple):
    """The older request of a key, which is to be cancelled, and the id of the newer one."""

    older: Request
    by: str


class SupersedeKeys:
    """The newest request under each key."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], Request] = {}
        self._preparing: dict[tuple[str, str], set[Request]] = {}

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
        that its client sent later.
        """
        if request.supersede is None:
            return None
        self.remove(request)
        rival = self.rival(request)
        if rival is not None and rival.arrived_at > request.arrived_at:
            return Superseding(request, rival.id)
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
