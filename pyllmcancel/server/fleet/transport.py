"""The transport, which carries messages between replicas. HTTP is used (`http_transport`); another one has to do this.

A message is sent as JSON, ``message.model_dump(mode="json")``, to every other replica, where
``await Fleet.receive(json)`` acts on it and returns the reply, which is JSON, too. The event loop is that of the
server: `Fleet` belongs to it, and calls everything here in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.messages import Message, News

DEADLINE_SECONDS = 2.0  # for all answers to one message
# For computations to stop, of those seconds: after that the answer says that they have not yet.
WAIT_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a message to one replica.

    Attributes
    ----------
    replica
        Its name in lists.
    reply
        What it has answered, unchecked; None if it has not answered in time, or with an error.
    error
        Why there is no reply, for people.
    left_out
        It is not asked at all, because it is of another version, or has another model or this name.
    """

    replica: str
    reply: Mapping[str, Any] | None = None
    error: str | None = None
    left_out: bool = False


class Transport(Protocol):
    """The way to all other replicas."""

    def start(self, heard: Callable[[list[Answer]], None]) -> None:
        """Begin to look for them. The answers to what was told are given to `heard`."""

    async def ask_all(self, message: Message) -> list[Answer]:
        """Ask all at once; one answer for each, in `DEADLINE_SECONDS` at most. Does not raise."""

    def tell_all(self, news: News) -> None:
        """Pass this on soon, without waiting. Of one key only the newest has to arrive."""

    async def close(self) -> None:
        """End everything that was begun. Idempotent."""
