"""A replica among the others: what it tells them, and what it does when they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pyllmcancel.server.error_handlers import validation_error
from pyllmcancel.server.fleet.acting import Acting
from pyllmcancel.server.fleet.announcer import Announcer
from pyllmcancel.server.fleet.asking import Asking, reply_in
from pyllmcancel.server.fleet.everywhere import Everywhere
from pyllmcancel.server.fleet.messages import MESSAGES, Newer

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.transport import Answer, Transport
    from pyllmcancel.server.state import ServerState
    from pyllmcancel.server.visible import Visible


class Fleet:
    """Belongs to the event loop of the server. `name` is what lists call this replica."""

    def __init__(self, state: ServerState, transport: Transport, name: str) -> None:
        self._state = state
        self._transport = transport
        self._asking = Asking(transport, name)
        self._acting = Acting(state)
        self._announcer: Announcer | None = None

    def start(self) -> None:
        """The model is there: look for the others, and tell them what is accepted. Idempotent."""
        if self._announcer is None:
            self._transport.start(self._hear)
            self._announcer = Announcer(asyncio.get_running_loop(), self._transport.tell_all)
            self._state.engine.add_observer(self._announcer)

    async def close(self) -> None:
        """Idempotent."""
        if self._announcer is not None:
            self._state.engine.remove_observer(self._announcer)
        await self._transport.close()

    async def receive(self, said: Any) -> Mapping[str, Any]:
        """Act on a message of another replica; the reply to it.

        Raises
        ------
        ApiError
            It is no message, or cannot be acted on.
        """
        try:
            message = MESSAGES.validate_python(said)
        except ValidationError as error:
            raise validation_error(error.errors(include_url=False, include_input=False)[0], is_json=True) from None
        reply = await self._acting.act(message)
        return reply.model_dump(mode="json", exclude_unset=True)

    def _hear(self, answers: list[Answer]) -> None:
        """Others have been told what was accepted here, and know of something newer."""
        for answer in answers:
            try:
                reply = reply_in(answer, Newer)
            except ValueError:
                continue
            for news in reply.newer:
                self._acting.heed(news)

    def everywhere(self, see: Visible) -> Everywhere:
        """What the sender of a request may see and cancel, on all replicas."""
        return Everywhere(self._asking, self._acting, see)
