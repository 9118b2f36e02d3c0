"""How a run shows that it goes on."""

from __future__ import annotations

from typing import Protocol

from pyllmcancel.bench.client import Exchange


class Progress(Protocol):
    """Told by a scenario what it does; must be quick."""

    def begin(self, text: str, total: int) -> None:
        """`total` exchanges follow."""

    def advance(self, exchange: Exchange) -> None:
        """One of them has ended."""

    def end(self) -> None:
        """Nothing more comes of what has begun."""


class Silent:
    """Shows nothing."""

    def begin(self, text: str, total: int) -> None: ...
    def advance(self, exchange: Exchange) -> None: ...
    def end(self) -> None: ...
