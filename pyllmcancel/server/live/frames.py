"""What readers are given: the ring's facts as events, encoded once for all who see the same, and the ids of events."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.server.live.wording import Wording, as_json, frame

if TYPE_CHECKING:
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
    """

    owner: str | None
    types: frozenset[str] | None = None


class Frames:
    """Encodes what is in a ring; `texts` are shown, if there are any."""

    def __init__(self, texts: Texts | None = None) -> None:
        self.boot = secrets.token_hex(4)
        self.wording = Wording(texts)
        self._shared: dict[tuple[Audience, int], tuple[bytes, int]] = {}

    def id_of(self, number: int) -> str:
        return f"{self.boot}-{number}"

    def number_in(self, event_id: str) -> int | None:
        """The number in an id of this server's; None in any other text."""
        boot, _, number = event_id.rpartition("-")
        is_number = number.isascii() and number.isdigit() and len(number) < 20
        return int(number) if boot == self.boot and is_number else None

    def after(self, ring: Ring, place: int, audience: Audience) -> tuple[bytes, int]:
        """The next events for this audience, some at a time, and the place after them; empty if there are none yet."""
        chunk = b""
        while place < ring.newest and not chunk:
            shared = self._shared.get((audience, place))
            if shared is None:
                shared = self._encoded(ring, place, audience)
                if len(self._shared) < MOST_SHARED:
                    self._shared[audience, place] = shared
            chunk, place = shared
        return chunk, place

    def _encoded(self, ring: Ring, place: int, audience: Audience) -> tuple[bytes, int]:
        frames: list[bytes] = []
        n_bytes = 0
        for fact in ring.after(place, CHUNK_EVENTS):
            place += 1
            event = self.wording.event(fact, audience.owner, audience.types)
            if event is None:
                continue
            frames.append(frame(self.id_of(place), event["type"], as_json(event)))
            n_bytes += len(frames[-1])
            if n_bytes >= CHUNK_BYTES:
                break
        return b"".join(frames), place

    def forget(self) -> None:
        """The ring has more: what was the last chunk of it is so no longer."""
        self._shared.clear()
