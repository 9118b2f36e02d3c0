"""The snapshots of several servers, with which one reader of their feed begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pyllmcancel.server.fleet.events.relayed import as_of, replica_event, snapshot_seen
from pyllmcancel.server.fleet.messages import Snapshot, TakeSnapshot
from pyllmcancel.server.fleet.queries import reply_in
from pyllmcancel.server.fleet.slots import TOO_MUCH_AT_ONCE
from pyllmcancel.server.live.wording import as_json, frame

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from pyllmcancel.server.fleet.events.feed import WholeFeed
    from pyllmcancel.server.fleet.events.upstream import Upstream
    from pyllmcancel.server.fleet.transport import Answer
    from pyllmcancel.server.live.frames import Audience
    from pyllmcancel.server.live.snapshot import Reason, Snapshots
    from pyllmcancel.server.live.source import Reader

PAUSES = (0.25, 0.5, 1.0, 2.0)  # seconds


class WholeSnapshots:
    """The snapshots of all replicas, for one reader of the feed of all of them."""

    def __init__(self, whole: WholeFeed, here: Snapshots, audience: Audience) -> None:
        self._whole = whole
        self._here = here
        self._audience = audience

    async def frames(self, reader: Reader, reason: Reason) -> AsyncIterator[bytes]:
        """Yield this server's snapshot at once, then one event of each peer.

        Only the last of them has an id: a reader that has this id has them all.
        """
        whole, wanted = self._whole, self._audience.replica
        whole.flush()
        place = reader.place = whole.ring.newest
        event_id = whole.frames.id_of(place)
        upstreams = whole.upstreams(wanted)
        if wanted in (None, whole.name):
            yield frame(None if upstreams else event_id, "snapshot", await self._here.encoded(reason))
        told = await asyncio.gather(*(self._of(upstream, reason) for upstream in upstreams))
        frames = [one for one in told if one is not None]
        for number, (name, data) in enumerate(frames, start=1):
            yield frame(event_id if number == len(frames) else None, name, data)

    async def _of(self, upstream: Upstream, reason: Reason) -> tuple[str, bytes] | None:
        """Return the peer's snapshot, or the state of its feed; None if neither is known soon: it is then sent later.

        A feed that is read since this reader came has a snapshot, which follows.
        """
        if upstream.state is None:
            await upstream.known()
        elif upstream.is_live:
            answer = await self._asked(upstream)
            try:
                event: Mapping[str, Any] = reply_in(answer, Snapshot).event
            except ValueError as error:
                # the reader's owner may cause this error, and the others keep their feed
                if answer.error != TOO_MUCH_AT_ONCE:
                    upstream.begin_anew()
                return "replica", replica_event(answer.replica, "lost", str(error)).data
            if self._audience.theirs is not None:
                event = snapshot_seen(event, self._audience.theirs, counts=self._audience.owner is None)
            return "snapshot", as_json(as_of(answer.replica, {**event, "reason": reason}))
        else:
            upstream.begin_anew()  # the events that follow mean nothing without a snapshot
        return None if upstream.state is None else ("replica", upstream.state.data)

    async def _asked(self, upstream: Upstream) -> Answer:
        """Ask for a snapshot; again if the owner asks too many questions at once: without a snapshot a reader sees
        nothing of a peer.
        """
        message = TakeSnapshot(owner=self._audience.owner)
        answer = await upstream.peer.ask(message)
        for pause in PAUSES:
            if answer.error != TOO_MUCH_AT_ONCE:
                break
            await asyncio.sleep(pause)
            answer = await upstream.peer.ask(message)
        return answer
