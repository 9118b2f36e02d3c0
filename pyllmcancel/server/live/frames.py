"""Frames for readers: the ring's facts as events, encoded once for all who see the same, and the ids of events."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pyllmcancel.server.live.facts import StepsFact
from pyllmcancel.server.live.wording import Wording, as_json, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyllmcancel.server.live.facts import Fact
    from pyllmcancel.server.live.ring import Ring
    from pyllmcancel.server.live.texts import Texts

CHUNK_EVENTS, CHUNK_BYTES = 256, 1 << 16  # what one reader is given at once, about: no more of it is in memory
MOST_SHARED = 32  # chunks that are kept for other readers until the next flush


class Audience(NamedTuple):
    """Who sees the same.

    Attributes
    ----------
    owner
        What of it is seen; None: all.
    types
        Of events; None: all.
    replica
        What each event calls this server; None: nothing.
    peer
        Another server, which has to know whose each sequence of a step is.
    theirs
        What of other servers is seen, beside what is nobody's: their keys may be others than this one's; None: all.
    """

    owner: str | None
    types: frozenset[str] | None = None
    replica: str | None = None
    peer: bool = False
    theirs: str | None = None


Item = TypeVar("Item")


class Framing(ABC, Generic[Item]):
    """Encodes what is in a ring, once for all who see the same."""

    def __init__(self) -> None:
        self.boot = secrets.token_hex(4)
        self._shared: dict[tuple[Audience, int], tuple[bytes, int]] = {}

    @abstractmethod
    def worded(self, item: Item, audience: Audience) -> tuple[str, bytes] | None:
        """The name and the JSON of an event; None if nothing of it may be seen, or it is not wanted."""

    def id_of(self, number: int) -> str:
        return f"{self.boot}-{number}"

    def number_in(self, event_id: str) -> int | None:
        """The number in an id of this server's; None in any other text."""
        boot, _, number = event_id.rpartition("-")
        is_number = number.isascii() and number.isdigit() and len(number) < 20
        return int(number) if boot == self.boot and is_number else None

    def after(self, ring: Ring[Item], place: int, audience: Audience) -> tuple[bytes, int]:
        """The next events for this audience, some at a time, and the place after them; empty if there are none yet.

        None are given to a place that the ring does not remember: that reader is to be dropped.
        """
        chunk = b""
        while ring.remembers(place) and place < ring.newest and not chunk:
            shared = self._shared.get((audience, place))
            if shared is None:
                shared = self._encoded(ring, place, audience)
                if len(self._shared) < MOST_SHARED:
                    self._shared[audience, place] = shared
            chunk, place = shared
        return chunk, place

    def _encoded(self, ring: Ring[Item], place: int, audience: Audience) -> tuple[bytes, int]:
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
        """The ring has more: what was the last chunk of it is so no longer."""
        self._shared.clear()


class Frames(Framing["Fact"]):
    """Frames of one server's facts. `texts` are shown, if there are any."""

    def __init__(self, texts: Texts | None = None) -> None:
        super().__init__()
        self.wording = Wording(texts)

    def worded(self, item: Fact, audience: Audience) -> tuple[str, bytes] | None:
        event = self.wording.event(item, audience.owner, audience.types)
        if event is None:
            return None
        if audience.replica is not None:
            event["replica"] = audience.replica
        told: Mapping[str, object] = event
        if audience.peer and isinstance(item, StepsFact):
            told = {**event, "owners": [part.owner for part in item.last.sequences]}
        return event["type"], as_json(told)
