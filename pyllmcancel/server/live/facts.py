"""Facts: the form in which events are kept. They hold no requests, which would keep prompts and samplers alive.

They become JSON when a reader asks. Used in the event loop only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from pyllmcancel.events import Ending, RequestStatus
from pyllmcancel.requests.observer import Observer, StepPart, StepRecord
from pyllmcancel.requests.request import Request, RequestSummary, Times
from pyllmcancel.server.live.events import AdmittedEvent, CancelledEvent, StatsEvent

# Much more than happens between two flushes. If this limit is reached the event loop hangs, and the readers begin anew.
MAX_RECORDS = 100_000


class Happening(NamedTuple):
    """Something that happened to a request. An admission has its slots and cached tokens, an end its ending."""

    kind: Literal["added", "admitted", "cancelled", "ended"]
    request: Request
    at: float
    ending: Ending | None = None
    slots: tuple[int, ...] = ()
    cached_tokens: int = 0


class Stepped(NamedTuple):
    record: StepRecord
    n_wasted: int


Record = Happening | Stepped


class Recorder(Observer):
    """An observer that keeps events until the event loop takes them.

    It is called between two steps, so it only makes a tuple and appends it. That needs no lock and no JSON, and takes a
    few microseconds. `wake` is called from any thread when there are records, once until they are taken, or at worst
    twice.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake
        self._records: deque[Record] = deque()
        self._woken = False
        self.overrun = False  # set if records were lost; written by any thread, reset by the event loop

    def take(self) -> list[Record]:
        """Take all records, oldest first. In the event loop only."""
        self._woken = False  # first: records that come meanwhile wake the loop again
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._records.popleft())
        return taken

    def request_added(self, request: Request) -> None:
        self._keep(Happening("added", request, time.monotonic()))

    def request_admitted(self, request: Request) -> None:
        summary = request.summary()
        self._keep(Happening("admitted", request, time.monotonic(), None, summary.slots, summary.cached_tokens))

    def request_cancelled(self, request: Request) -> None:
        self._keep(Happening("cancelled", request, request.cancellation.requested_at or time.monotonic()))

    def request_ended(self, request: Request, ending: Ending) -> None:
        self._keep(Happening("ended", request, request.ended_at or time.monotonic(), ending))

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        self._keep(Stepped(record, n_wasted))

    def _keep(self, record: Record) -> None:
        if len(self._records) >= MAX_RECORDS:
            self.overrun = True
            return
        self._records.append(record)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the event loop was closed
                self._wake()


COUNTS = ("n_tokens", "n_drafted", "n_accepted")  # of a part of a step


class RequestFact(NamedTuple):
    """A request that came or ended. Its event shows texts, which are looked up when a reader asks."""

    type: Literal["added", "ended"]
    at: float
    summary: RequestSummary


class PlainFact(NamedTuple):
    """An event that all who may see it see alike: the `owner`, and administrators; None: administrators only."""

    owner: str | None
    event: AdmittedEvent | CancelledEvent | StatsEvent


@dataclass(slots=True)
class StepsFact:
    """Steps in a row that had the same sequences, phases and status.

    A thousand steps may come in a second, and nearly every one equals the one before: such steps are only counted.
    """

    last: StepRecord
    at: float
    n_steps: int = 1
    busy: float = 0.0
    wasted: int = 0
    _n_repeats: int = 1  # repetitions of `last`, itself included
    _before: list[StepPart] = field(default_factory=list)  # the sequences, with their tokens in the steps before

    def takes(self, step: Stepped) -> bool:
        """Add a step, if it equals the others; return whether it was added."""
        record, n_wasted = step
        last = self.last
        if record.status != last.status or record.spared != last.spared:
            return False
        if record.survivors != last.survivors or record.threads != last.threads:
            return False
        if record.sequences == last.sequences:
            self._n_repeats += 1
        elif uncounted(record.sequences) == uncounted(last.sequences):  # the same choices, slots and phases
            self._before = self.parts()
            self._n_repeats = 1
        else:
            return False
        self.last = record
        self.n_steps += 1
        self.busy += record.seconds
        self.wasted += n_wasted
        return True

    def parts(self) -> list[StepPart]:
        """Return the sequences, each with its tokens in all the steps."""
        n = self._n_repeats
        repeated = [part._replace(**{name: n * getattr(part, name) for name in COUNTS}) for part in self.last.sequences]
        if not self._before:
            return repeated
        return [
            one._replace(**{name: getattr(one, name) + getattr(other, name) for name in COUNTS})
            for one, other in zip(repeated, self._before, strict=True)
        ]


Fact = RequestFact | PlainFact | StepsFact
KEPT = 20_000
F = TypeVar("F")


class Ring(Generic[F]):
    """The last `kept` facts, or a tenth more. Each has a number that grows by one; `first` is the oldest one's."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._facts: list[F] = []
        self.first = 1

    @property
    def newest(self) -> int:
        return self.first + len(self._facts) - 1

    def remembers(self, number: int) -> bool:
        """Return whether all facts after this number are here."""
        return self.first - 1 <= number <= self.newest

    def extend(self, facts: Iterable[F]) -> None:
        self._facts.extend(facts)
        excess = len(self._facts) - self._kept
        if excess > self._kept // 10:
            del self._facts[:excess]
            self.first += excess

    def after(self, number: int, most: int) -> Sequence[F]:
        """Return the facts after the one of this number, which the ring must remember."""
        begin = number + 1 - self.first
        return self._facts[begin : begin + most]

    def skip(self) -> None:
        """Forget all facts, and note a gap: facts were not recorded."""
        self.first = self.newest + 2
        self._facts.clear()


def uncounted(parts: Iterable[StepPart]) -> list[StepPart]:
    return [part._replace(n_tokens=0, n_drafted=0, n_accepted=0) for part in parts]


def as_it_came(request: Request, at: float) -> RequestSummary:
    """Return the request as it was in the queue; by now it may be running, or even over."""
    return replace(
        request.summary(),
        status=RequestStatus.WAITING,
        slots=(),
        paused=False,
        prompt_tokens_done=0,
        cached_tokens=0,
        completion_tokens=0,
        cancel_reason=None,
        superseded_by=None,
        seconds=max(0.0, at - request.arrived_at),
        times=Times(request.arrived_at),
    )


class FactFinder:
    """Makes facts of records, in the order that the feed promises.

    Of each request `added` comes first and `ended` last, `cancelled` before that, each once. Records may come in any
    order: threads write them (see `pyllmcancel.requests.observer.Observer`). The facts that a record presumes are
    returned before it, and each fact is returned once.
    """

    def __init__(self) -> None:
        self._reported: WeakKeyDictionary[Request, set[str]] = WeakKeyDictionary()

    def find(self, records: Iterable[Record]) -> Iterator[Fact]:
        """Return the facts of records; equal steps in a row become one fact."""
        steps: StepsFact | None = None
        for record in records:
            if isinstance(record, Stepped):
                if steps is None or not steps.takes(record):
                    if steps is not None:
                        yield steps
                    step, n_wasted = record
                    steps = StepsFact(step, step.started_at, busy=step.seconds, wasted=n_wasted)
                continue
            facts = list(self._of_request(record))
            if facts and steps is not None:
                yield steps
                steps = None
            yield from facts
        if steps is not None:
            yield steps

    def _of_request(self, record: Happening) -> Iterator[Fact]:
        request, at = record.request, record.at
        if self._is_news(request, "added"):
            yield RequestFact("added", at, as_it_came(request, at))
        if record.kind == "admitted":
            admitted: AdmittedEvent = {
                "type": "admitted",
                "at": at,
                "id": request.id,
                "owner": request.owner,
                "slots": list(record.slots),
                "cached_tokens": record.cached_tokens,
            }
            yield PlainFact(request.owner, admitted)
        reason, requested_at = request.cancellation.reason, request.cancellation.requested_at
        is_over = record.kind in ("cancelled", "ended")
        if is_over and reason is not None and requested_at is not None and self._is_news(request, "cancelled"):
            cancelled: CancelledEvent = {
                "type": "cancelled",
                "at": requested_at,
                "id": request.id,
                "owner": request.owner,
                "reason": reason,
                "superseded_by": request.superseded_by,
            }
            yield PlainFact(request.owner, cancelled)
        if record.kind == "ended":
            yield RequestFact("ended", at, request.summary(record.ending))

    def _is_news(self, request: Request, what: str) -> bool:
        reported = self._reported.setdefault(request, set())
        news = what not in reported
        reported.add(what)
        return news
