"""The session map: at most one live request per session, newest wins.

Not synchronised: the registry guards it, and the waiting queue, with one lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.request import Request


class SessionMap:
    """Which request is the newest of each session."""

    def __init__(self) -> None:
        self._newest: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def __iter__(self) -> Iterator[str]:
        return iter(self._newest)

    def newest(self, session: str) -> Request | None:
        return self._newest.get(session)

    def install(self, request: Request) -> Request | None:
        """Make `request` its session's newest; returns the one it replaces, which the caller must cancel."""
        if request.session is None:
            return None
        previous = self._newest.get(request.session)
        self._newest[request.session] = request
        return previous

    def remove(self, request: Request) -> None:
        """Forget an ended request, unless a newer one has taken its place."""
        if request.session is not None and self._newest.get(request.session) is request:
            del self._newest[request.session]
