"""The measured times: when each key's request was sent, computed and left."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Key:
    """One request; seconds since the first was sent, None for what did not happen."""

    sent: float
    left: float | None = None
    first_token: float | None = None
    began: float | None = None
    ended: float | None = None


@dataclass(slots=True)
class Typing:
    """All keys typed on one server."""

    server: str
    version: str
    keys: list[Key]

    @property
    def waited(self) -> float:
        """Seconds from the last key to its first token."""
        last = self.keys[-1]
        assert last.first_token is not None, "the last key was not answered"
        return last.first_token - last.sent

    @property
    def for_nobody(self) -> float:
        """Seconds that were computed for requests whose client had left."""
        return sum(
            max(0.0, key.ended - max(key.left, key.began))
            for key in self.keys
            if key.left is not None and key.began is not None and key.ended is not None
        )
