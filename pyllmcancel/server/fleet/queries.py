"""Questions to all other replicas, and their replies, checked."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

from pyllmcancel.server.fleet.messages import Message, Reply

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.transport import Answer, Transport

R = TypeVar("R", bound=Reply)
logger = logging.getLogger("pyllmcancel.fleet")


class Heard(NamedTuple, Generic[R]):
    """Replies by the names of their replicas, and why the others have not answered.

    Attributes
    ----------
    silent
        Those of the `unreached` that work with this server, and so may have the requested data.
    """

    replies: dict[str, R]
    unreached: dict[str, str]
    silent: list[str]


class PeerQueries:
    """Questions to the other replicas. Used in the event loop only. `name` is this replica's name in lists."""

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self._transport = transport

    async def ask(self, message: Message, reply_type: type[R]) -> Heard[R]:
        """Ask all others; `reply_type` is the type of the message's reply. Does not raise."""
        assert message.reply is reply_type
        heard = Heard[R]({}, {}, [])
        for answer in await self._transport.ask_all(message):
            try:
                heard.replies[answer.replica] = reply_in(answer, reply_type)
            except ValueError as error:
                heard.unreached[answer.replica] = str(error)
                if not answer.left_out:
                    heard.silent.append(answer.replica)
        return heard


def reply_in(answer: Answer, reply_type: type[R]) -> R:
    """Return the reply; ValueError, with the reason, if there is none."""
    if answer.reply is None:
        raise ValueError(answer.error or "did not answer")
    try:
        return reply_type.model_validate(answer.reply)
    except ValidationError as error:
        logger.warning("%s gave an invalid answer: %s", answer.replica, error)
        raise ValueError("gave an invalid answer") from None
