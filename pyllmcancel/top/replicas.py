"""The states of all replicas: a `State` of each. A server of one model is one replica without a name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyllmcancel.top.request import Request
from pyllmcancel.top.state import State

MAX_REPLICAS = 64


class Replicas:
    """Changed by `apply` and `choose_next` alone.

    Attributes
    ----------
    states
        The states by name, in the order in which the replicas appeared.
    """

    def __init__(self, states: Iterable[State] = ()) -> None:
        self.states = {state.replica: state for state in states}
        self._chosen = ""
        self._nothing = State()
        self._has_begun = False
        self._awaited: set[str] = set()  # replicas whose snapshots follow

    @property
    def shown(self) -> State:
        """The state of the replica whose slots and figures are shown."""
        return self.states.get(self._chosen) or next(iter(self.states.values()), self._nothing)

    @property
    def named(self) -> bool:
        """True if the server is a front."""
        return any(self.states)

    @property
    def complete(self) -> bool:
        """True if the first snapshots have come, of all replicas whose feeds are read."""
        return self._has_begun and not self._awaited

    def apply(self, data: Any) -> State:
        """Take the data of an event; return the state that it changed."""
        name, kind = (data.get("replica"), data.get("type")) if isinstance(data, dict) else ("", None)
        name = name if isinstance(name, str) else ""
        self._has_begun = True
        if kind == "models":
            self._serves(data.get("models"))
            return self.shown
        if kind == "snapshot":
            self._awaited.discard(name)
            self._make(name)
        state = self.states.get(name, self._nothing)
        if kind != "snapshot" and not state.known:
            return state  # without a snapshot the event has no meaning
        state.apply(data)
        return state

    def _serves(self, models: Any) -> None:
        """Take the list of all models: each of their processes that serves has a snapshot, or will send one."""
        there = {name for one in dicts_in(models) for name in serving(one)}
        self.states = {name: state for name, state in self.states.items() if name in there}
        self._awaited = set(sorted(there - self.states.keys())[:MAX_REPLICAS])

    def _make(self, name: str) -> None:
        # The server was restarted as a front, or as none.
        if bool(name) is ("" in self.states):
            self.states.clear()
        if name not in self.states and len(self.states) < MAX_REPLICAS:
            self.states[name] = State(replica=name)

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
        """Return the ended requests, the last one last."""
        every = [request for state in self.states.values() for request in state.ended]
        return sorted(every, key=lambda request: request.ended or 0.0) if len(self.states) > 1 else every

    def find(self, key: tuple[str, str, str]) -> Request | None:
        """Return the live request of this key."""
        state = self.states.get(key[0])
        return None if state is None else state.live.get(key)


def serving(model: dict[str, Any]) -> list[str]:
    """Return the names of a model's processes that serve."""
    several = dicts_in(model.get("replicas")) or [{**model, "name": model.get("replica")}]
    return [
        str(one.get("name")) for one in several if {"value": "loaded"}.items() <= dict_in(one.get("status")).items()
    ]


def dict_in(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def dicts_in(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
