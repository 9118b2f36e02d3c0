"""The shared state of a storm's clients, and the record of each of their visits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bench.scenarios.storm.palette import Palette
from bench.scenarios.storm.wire import Answer, Reply

Question = tuple[str, str]  # name of a kind, and prompt


@dataclass(slots=True)
class Visit:
    """The record of one client's actions and observations."""

    id: str
    way: str
    what: str
    # Reasons as which the request may have ended, by the server's log; empty for a proper end, None if it may never
    # have been accepted.
    expected: tuple[str | None, ...] = ()
    stays: bool = False  # its client waited for the whole answer, and nothing cancelled it
    late: bool = False  # its client was to cut it, and was held up, by a busy machine, for longer than the answer lasts
    cut_at: float = 0.0  # when it was cut, on the monotonic clock; 0: it was not, or at once
    sent_at: float = field(default_factory=time.monotonic)
    refused: bool = False
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.faults.append(f"{self.id}, {self.way}, {self.what}: {text}")


@dataclass(slots=True)
class Stage:
    """The shared state of all clients of a server."""

    port: int
    palette: Palette
    known: Mapping[Question, Answer]  # the answers given alone
    name: str
    numbers: Callable[[], int]
    lasting: float = 0.0  # seconds that a request to be cut takes at least, if nothing cuts it

    def fresh_id(self) -> str:
        return f"{self.name}-{self.numbers()}"


class Numbers:
    """Counts for all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def __call__(self) -> int:
        with self._lock:
            self._next += 1
            return self._next


def told(reply: Reply) -> str:
    return f"status {reply.status}, ends {reply.ends}, framed {reply.framed}, error {reply.error}"
