"""A replica among the others: its messages to them, and its actions on theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from pyllmcancel.server.fleet.announcer import Announcer
from pyllmcancel.server.fleet.events.snapshots import WholeSnapshots
from pyllmcancel.server.fleet.handler import MessageHandler
from pyllmcancel.server.fleet.messages import MESSAGES, Follow, Message, Newer, Responded
from pyllmcancel.server.fleet.queries import PeerQueries, reply_in
from pyllmcancel.server.fleet.view import FleetView
from pyllmcancel.server.http.error_handlers import validation_error
from pyllmcancel.server.live.frames import Audience
from pyllmcancel.server.live.response import FeedResponse, unknown_replica
from pyllmcancel.server.live.snapshot import Snapshots
from pyllmcancel.server.requests.visible import Visible

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.events.feed import WholeFeed
    from pyllmcancel.server.fleet.transport import Answer, Transport
    from pyllmcancel.server.state import ServerState

M = TypeVar("M", bound=Message)
FOLLOW: TypeAdapter[Follow] = TypeAdapter(Follow)
PEERS = "other servers"  # the owner of their seats in the feed; no owner's name has a space


class Fleet:
    """A replica's part in the fleet. Used in the server's event loop only.

    Parameters
    ----------
    name
        This replica's name in lists.
    feed
        The feed of all replicas, if the transport can reach the others' feeds.
    """

    def __init__(self, state: ServerState, transport: Transport, name: str, feed: WholeFeed | None = None) -> None:
        self.feed = feed
        self._state = state
        self._transport = transport
        self._queries = PeerQueries(transport, name)
        self._handler = MessageHandler(state)
        self._announcer: Announcer | None = None

    def start(self) -> None:
        """Begin after the model is loaded: look for the others, and report accepted requests to them. Idempotent."""
        if self._announcer is None:
            self._transport.start(self._hear)
            self._announcer = Announcer(asyncio.get_running_loop(), self._transport.tell_all)
            self._state.engine.add_observer(self._announcer)

    async def close(self) -> None:
        """Idempotent."""
        if self._announcer is not None:
            self._state.engine.remove_observer(self._announcer)
        if self.feed is not None:
            await self.feed.close()
        await self._transport.close()

    async def receive(self, said: Any) -> Mapping[str, Any]:
        """Act on a message of another replica, and return the reply.

        Raises
        ------
        ApiError
            It is not a message, or cannot be acted on.
        """
        message = checked(MESSAGES, said)
        reply = await self._handler.act(message)
        if isinstance(reply, Responded) and reply.found is not None:
            return {"found": reply.found}  # this is already JSON, and long, so it is not copied
        return reply.model_dump(mode="json", exclude_unset=True)

    def follow(self, said: Any) -> FeedResponse:
        """Return the feed of this replica for another replica; ApiError if it cannot be followed."""
        message = checked(FOLLOW, said)
        see = Visible(self._state, None)
        self._state.feed.check_room(PEERS)
        audience = Audience(None, peer=True)
        snapshots = Snapshots(self._state, see, audience)
        return FeedResponse(
            self._state.feed,
            snapshots.frames,
            audience,
            owner=PEERS,
            last_event_id=message.last_event_id,
            ping_interval=self._state.config.sse_ping_interval,
        )

    def events(self, see: Visible, audience: Audience, owner: str, last_event_id: str | None) -> FeedResponse | None:
        """Return the feed of all replicas, or of the one that `audience` names; None if that is this replica's own
        feed.

        Raises ApiError if there is no replica of this name.
        """
        if audience.replica is not None and (self.feed is None or not self.feed.knows(audience.replica)):
            raise unknown_replica()
        if self.feed is None or audience.replica == self.feed.name:
            return None
        here = Snapshots(self._state, see, audience, self.feed.name)
        return FeedResponse(
            self.feed,
            WholeSnapshots(self.feed, here, audience).frames,
            audience,
            owner=owner,
            last_event_id=last_event_id,
            ping_interval=self._state.config.sse_ping_interval,
        )

    def _hear(self, answers: list[Answer]) -> None:
        """Cancel requests that are older than those that other replicas have reported in their replies."""
        for answer in answers:
            try:
                reply = reply_in(answer, Newer)
            except ValueError:
                continue
            for news in reply.newer:
                self._handler.heed(news)

    def view(self, see: Visible) -> FleetView:
        """Return the view of all replicas for the sender of a request."""
        return FleetView(self._queries, self._handler, see)


def checked(adapter: TypeAdapter[M], said: Any) -> M:
    """Return the message; ApiError if the JSON is not one."""
    try:
        return adapter.validate_python(said)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_input=False)[0], is_json=True) from None
