"""Frames for readers: the ring's facts as events, encoded once for all who see the same, and the ids of events."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.server.live.wording import Wording, as_json, frame

if TYPE_CHECKING:
    from pyllmcancel.server.live.facts import Fact
    from pyllmcancel.server.live.ring import Ring
    from pyllmcancel.server.live.texts import Texts

CHUNK_EVENTS, CHUNK_BYTES = 256, 1 << 16  # about as much as one reader is given at once, so that no more is in memory
MAX_SHARED = 32  # chunks that are kept for other readers until the next flush


class Audience(NamedTuple):
    """The readers that see the same events.

    Attributes
    ----------
    owner
        The owner whose events are seen; None: all owners.
    types
        The types of events; None: all types.
    replica
        This server's name in each event; None: no name.
    """

    owner: str | None
    types: frozenset[str] | None = None
    replica: str | None = None


class Frames:
    """Encodes the facts of a ring, once for all readers that see the same. `texts` are shown, if given."""

    def __init__(self, texts: Texts | None = None) -> None:
        self.wording = Wording(texts)
        self.boot = secrets.token_hex(4)
        self._shared: dict[tuple[Audience, int], tuple[bytes, int]] = {}

    def worded(self, item: Fact, audience: Audience) -> tuple[str, bytes] | None:
        """Return the name and the JSON of an event; None if its audience may not see it, or does not want it."""
        event = self.wording.event(item, audience.owner, audience.types)
        if event is None:
            return None
        if audience.replica is not None:
            event["replica"] = audience.replica
        return event["type"], as_json(event)

    def id_of(self, number: int) -> str:
        return f"{self.boot}-{number}"

    def number_in(self, event_id: str) -> int | None:
        """Return the number in an id of this server's; None for any other text."""
        boot, _, number = event_id.rpartition("-")
        is_number = number.isascii() and number.isdigit() and len(number) < 20
        return int(number) if boot == self.boot and is_number else None

    def after(self, ring: Ring[Fact], place: int, audience: Audience) -> tuple[bytes, int]:
        """Return the next events for this audience, some at a time, and the place after them; empty if there are none
        yet.

        Returns None for a place that the ring does not remember: that reader is to be dropped.
        """
        chunk = b""
        while ring.remembers(place) and place < ring.newest and not chunk:
            shared = self._shared.get((audience, place))
            if shared is None:
                shared = self._encoded(ring, place, audience)
                if len(self._shared) < MAX_SHARED:
                    self._shared[audience, place] = shared
            chunk, place = shared
        return chunk, place

    def _encoded(self, ring: Ring[Fact], place: int, audience: Audience) -> tuple[bytes, int]:
        frames: list[bytes] = []
        n_bytes = 0
        for item in ring.after(place, CHUNK_EVENTS):
            place += 1
            told = self.worded(item, audience)
            if told is None:
                continue
            frames.append(frame(self.id_of(place), *told))
            n_bytes += len(frames[-1])
            if n_bytes >= CHUNK_BYTES:
                break
        return b"".join(frames), place

    def forget(self) -> None:
        """Forget the last chunk, which is incomplete after the ring has grown."""
        self._shared.clear()
