"""A request in front: of the registry's tables like any other, and computed by a process."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import TYPE_CHECKING, Any

from pyllmcancel.cancellation import Cancellation
from pyllmcancel.events import Drafted, RequestStatus, Usage
from pyllmcancel.requests.request import Request
from pyllmcancel.scheduling.forecast import Ahead
from pyllmcancel.server.responses.answer import RESPONSE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from pyllmcancel.events import Ending
    from pyllmcancel.front.worker import Worker
    from pyllmcancel.requests.request import Origin, RequestSummary


class FrontRequest(Request):
    """Used in the event loop only, which is responsible for it.

    Attributes
    ----------
    model
        The name of its model; empty until it is known.
    streams
        The names by which its stream can be taken up again.
    is_background
        True if it is a response that is generated after its answer.
    process
        The process that it was sent to last; None before.
    ahead
        What it waits for in its process, as that says; None if it does not wait there.
    n_readers
        The readers of its stream, if that can be taken up again.
    on_cancel
        Called once when it is cancelled, from `FrontRequests.arrive` on.
    """

    def __init__(self, **origin: Unpack[Origin]) -> None:
        super().__init__(Cancellation(Event()), **origin)  # no step of this process reads it
        self.model = ""
        self.streams: tuple[str, ...] = ()
        self.is_background = False
        self.process: Worker | None = None
        self.on_cancel: Callable[[], object] = lambda: None
        self.n_readers: int | None = None
        self.ahead: Ahead | None = None
        self._n_prompt_tokens, self._n, self._max_tokens = 0, 1, None
        self._usage = Usage()
        self._in_slots: tuple[int, ...] = ()

    @property
    def found_by(self) -> tuple[str, ...]:
        """The names by which its answer can be found later: as a stream, and as a stored response."""
        return self.id, f"{RESPONSE_PREFIX}{self.id}", *self.streams

    def take_size(self, size: list[Any], adapters: list[tuple[int, float]]) -> None:
        """Take what a process says of a request that it has accepted."""
        self._n_prompt_tokens, self._n, self._max_tokens = size
        self.adapters = tuple((number, scale) for number, scale in adapters)

    def take_state(self, told: list[Any]) -> None:
        """Take how far the request is."""
        status, slots, self.paused, self.n_readers, times, done, cached, generated, drafts, *waits = told
        self.ahead = Ahead(*waits[0]) if waits and waits[0] is not None else None
        ahead = 0.0 if self.process is None else self.process.clock_ahead
        self.admitted_at, self.first_token_at = (None if one is None else one - ahead for one in times)
        self.status, self._in_slots = RequestStatus(status), tuple(slots)
        self._usage = Usage(done, generated, cached, tuple(Drafted(*one) for one in drafts))

    @property
    def n_prompt_tokens(self) -> int:
        return self._n_prompt_tokens

    def usage(self) -> Usage:
        return self._usage

    def _slots(self) -> tuple[int, ...]:
        return self._in_slots

    def summary(self, ending: Ending | None = None) -> RequestSummary:
        place = None if self.process is None else self.process.replica
        told = super().summary(ending)
        return replace(told, n=self._n, max_tokens=self._max_tokens, model=self.model or None, replica=place)
