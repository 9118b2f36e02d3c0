"""What is known of all replicas: a `State` of each. A server without peers is one without a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyllmcancel.top.request import Request
from pyllmcancel.top.state import State
from pyllmcancel.top.text import plain

MOST_REPLICAS = 64


class Replicas:
    """Changed by `apply` and `choose_next` alone.

    Attributes
    ----------
    states
        By name, in the order in which they were heard of.
    lost
        Why nothing is heard of a replica.
    """

    def __init__(self, states: Iterable[State] = ()) -> None:
        self.states = {state.replica: state for state in states}
        self.lost: dict[str, str] = {}
        self._chosen = ""
        self._nothing = State()

    @property
    def shown(self) -> State:
        """Of the replica whose slots and figures are shown."""
        return self.states.get(self._chosen) or next(iter(self.states.values()), self._nothing)

    @property
    def named(self) -> bool:
        """Whether the server has peers."""
        return any(self.states) or any(self.lost)

    def apply(self, data: Any) -> State:
        """Take in the data of an event; the state that it changed."""
        name, kind = (data.get("replica"), data.get("type")) if isinstance(data, dict) else ("", None)
        name = name if isinstance(name, str) else ""
        if kind == "replica":
            self._stands(name, data)
            return self.shown
        if kind == "snapshot":
            self.lost.pop(name, None)
            self._make(name)
        state = self.states.get(name, self._nothing)
        if kind != "snapshot" and not state.known:
            return state  # without a snapshot it says nothing
        state.apply(data)
        return state

    def _make(self, name: str) -> None:
        # It has peers since it was started again, or none any more.
        if bool(name) is ("" in self.states):
            self.states.clear()
        if name not in self.states and len(self.states) < MOST_REPLICAS:
            self.states[name] = State(replica=name)

    def _stands(self, name: str, data: dict[str, Any]) -> None:
        match data.get("state"):
            case "lost" if name in self.lost or len(self.lost) < MOST_REPLICAS:
                self.lost[name] = plain(str(data.get("why") or "not heard of"))
            case "live":
                self.lost.pop(name, None)
            case "gone":
                self.lost.pop(name, None)
                self.states.pop(name, None)

    def choose_next(self) -> None:
        """Show the next replica."""
        names = list(self.states)
        if names:
            place = names.index(self.shown.replica) if self.shown.replica in names else -1
            self._chosen = names[(place + 1) % len(names)]

    def running(self) -> list[Request]:
        return [request for state in self.states.values() for request in state.running()]

    def waiting(self) -> list[Request]:
        return [request for state in self.states.values() for request in state.waiting()]

    def ended(self) -> list[Request]:
        """The last one last."""
        every = [request for state in self.states.values() for request in state.ended]
        return sorted(every, key=lambda request: request.ended or 0.0) if len(self.states) > 1 else every

    def find(self, key: tuple[str, str, str]) -> Request | None:
        """The live request of this key."""
        state = self.states.get(key[0])
        return None if state is None else state.live.get(key)
