"""The transport, which carries messages between replicas. HTTP is used (`http_transport`); any other transport has to
implement this interface.

A message is sent as JSON, ``message.model_dump(mode="json")``, to every other replica, where ``await
Fleet.receive(json)`` acts on it and returns the reply, which is JSON, too. `Fleet` calls everything here in the
server's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.messages import Message, News

DEADLINE_SECONDS = 2.0  # for all answers to one message
# The part of that time for computations to stop; after it the answer says that they have not stopped yet.
WAIT_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a message to one replica.

    Attributes
    ----------
    replica
        The replica's name in lists.
    reply
        The unchecked reply; None if the replica answered too late, or with an error.
    error
        The reason why there is no reply, for people.
    left_out
        True if the replica is not asked at all, because it has another version, another model, or this replica's name.
    """

    replica: str
    reply: Mapping[str, Any] | None = None
    error: str | None = None
    left_out: bool = False


class Transport(Protocol):
    """The way to all other replicas."""

    def start(self, heard: Callable[[list[Answer]], None]) -> None:
        """Begin to look for the replicas. Answers to news are passed to `heard`."""

    async def ask_all(self, message: Message) -> list[Answer]:
        """Ask all replicas at once; one answer for each, in `DEADLINE_SECONDS` at most. Does not raise."""

    def tell_all(self, news: News) -> None:
        """Send news soon, without waiting. Only the newest of each key has to arrive."""

    async def close(self) -> None:
        """End everything that was begun. Idempotent."""
