"""When waiting requests will start: their order is the scheduler's own, the times follow from what steps have cost.

The forecast plays the queue: running requests generate at the measured pace until one ends, and the next one starts, as
`fair_share` chooses. The lengths of answers, the cached shares of prompts, and how long requests wait before they leave
the queue, are expected to be those of the last requests.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pyllmcancel.errors import LateError
from pyllmcancel.events import RequestStatus
from pyllmcancel.requests.observer import Observer
from pyllmcancel.requests.request import IDLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyllmcancel.events import Ending
    from pyllmcancel.requests.observer import StepRecord
    from pyllmcancel.requests.registry import Registry
    from pyllmcancel.requests.request import Request, RequestSummary
    from pyllmcancel.scheduling.fair_share import FairShare

REMEMBERED = 256  # ended requests
DECAY = 0.98
USUAL = 256  # tokens of an answer, before one has ended
MOST_BETWEEN = 0.1  # seconds before a step that count as a part of it
FRESH = 0.5  # seconds for which a forecast is used
LEAST = 0.7  # the share of an expected time that it takes at the least
RARELY = 20  # a forecast is used for this multiple of the time that it took


NEXT = "", ""  # the place of a request that comes after all that wait: no request has this id


class Ahead(NamedTuple):
    """The work ahead of a waiting request."""

    position: int  # 1 for the request that starts next
    tokens: int | None = None  # that running requests, and those that start earlier, have to compute; None if unknown
    seconds: float | None = None  # until it is expected to start; None if no step has been measured


class Past(NamedTuple):
    """An ended request: how long it waited, and whether it started then, the tokens of its prompt and those from the
    cache, and the mean length of its answers.
    """

    waited: float
    started: bool
    n_prompt: int
    n_cached: int
    length: float


@dataclass(eq=False, slots=True)
class Job:
    """The work of a request: the tokens of its prompt and of its answer. `end` counts the decode steps until then."""

    request: Request
    prompt: float
    answer: float
    end: float = 0.0
    waits: bool = True


class Patience:
    """How long requests wait before they leave, by the product-limit estimate.

    `waits` are the seconds of requests so far, or until they started, each with False; or until they left, with True.
    """

    def __init__(self, waits: Iterable[tuple[float, bool]]) -> None:
        self._times, self._shares = list[float](), [1.0]
        ordered = sorted(waits)
        for n_longer, (seconds, left) in zip(range(len(ordered) - 1, -1, -1), ordered, strict=True):
            if left:
                self._times.append(seconds)
                self._shares.append(self._shares[-1] * n_longer / (n_longer + 1))

    def after(self, now: float) -> Callable[[Request, float], float]:
        """Return the function that says with which probability a request still waits some seconds after `now`."""

        def stays(request: Request, seconds: float) -> float:
            waited = now - request.arrived_at
            before = self._shares[bisect(self._times, waited)]
            return self._shares[bisect(self._times, waited + seconds)] / before if before else 1.0

        return stays


class Rate:
    """Seconds for one token, in which older steps count less and less."""

    def __init__(self) -> None:
        self._seconds = self._n_tokens = 0.0

    def add(self, seconds: float, n_tokens: float) -> None:
        self._seconds = DECAY * self._seconds + seconds
        self._n_tokens = DECAY * self._n_tokens + n_tokens

    @property
    def value(self) -> float:
        return self._seconds / self._n_tokens if self._n_tokens else 0.0


class Forecast(Observer):
    """The forecast of an engine. `of` may be called from any thread.

    `shares` is the scheduler's order among owners, and `max_running` the limit of an owner's running requests.
    """

    def __init__(self, registry: Registry, shares: FairShare, slots: int, max_running: int | None = None) -> None:
        self._registry = registry
        self._shares = shares
        self._slots = slots
        self._max_running = max_running
        # Written by the engine thread, which computes steps.
        self._prompt, self._token = Rate(), Rate()
        self._last_end = 0.0
        self._past: deque[Past] = deque(maxlen=REMEMBERED)  # written by the threads that end requests
        # The last forecast, by owner and id, its time, and the time that it took; replaced as a whole.
        self._known: tuple[dict[tuple[str, str], Ahead], float, float] = {}, float("-inf"), 0.0

    # -- what is measured ---------------------------------------------------------------------------------------------

    def step_done(self, record: StepRecord, n_wasted: int) -> None:
        end = record.started_at + record.seconds
        seconds = end - max(self._last_end, record.started_at - MOST_BETWEEN)
        self._last_end = end
        if record.status != "ok" or record.idle:
            return
        decodes = [part for part in record.sequences if part.phase == "decode"]
        n_prompt = sum(part.n_tokens for part in record.sequences if part.phase == "prefill")
        if not n_prompt:
            if self._token.value and 2 * len(decodes) <= self._slots:
                return  # with free slots nothing waits, and steps are faster
            # All sequences advance together, so the step's time is that of one token, or of a draft's.
            n_kept = sum(part.n_tokens - part.n_drafted + part.n_accepted for part in decodes)
            self._token.add(seconds, n_kept / max(1, len(decodes)))
        else:
            self._prompt.add(max(0.0, seconds - (self._token.value if decodes else 0.0)), n_prompt)

    def request_ended(self, request: Request, ending: Ending) -> None:
        if request.is_idle:
            return
        usage, admitted_at = ending.usage, request.admitted_at
        waited = (admitted_at or time.monotonic()) - request.arrived_at
        length = usage.completion_tokens / (len(request.choices) or 1)
        self._past.append(Past(waited, admitted_at is not None, request.n_prompt_tokens, usage.cached_tokens, length))

    # -- what is expected ---------------------------------------------------------------------------------------------

    def of(self, request: Request | RequestSummary) -> Ahead | None:
        """Return what is ahead of a request; None if it does not wait, or waits for the machine to be idle."""
        if request.status is not RequestStatus.WAITING or request.priority == IDLE:
            return None
        known, age = self._latest((request.owner, request.id))
        ahead = known.get((request.owner, request.id))
        if ahead is None or ahead.seconds is None:
            return ahead
        return ahead._replace(seconds=max(0.0, ahead.seconds - age))

    def until_next_start(self) -> float | None:
        """Return the expected seconds until a request could start that came now, and began after all others; None if
        that is unknown.
        """
        known, age = self._latest()
        seconds = known[NEXT].seconds
        return None if seconds is None else max(0.0, seconds - age)

    def check(self, request: Request, usual: float | None) -> None:
        """Raise LateError if a request that is not accepted yet would miss its deadline, even if all goes well; the
        `usual` deadline if it has none.
        """
        timeout = usual if request.params.timeout is None else request.params.timeout
        if timeout is None or request.is_idle:
            return
        wait, past = self._least_wait(request), [*self._past.copy()]
        own = fresh(past) * request.n_prompt_tokens * self._prompt.value
        least = LEAST * (wait + own + answer_of(request, lengths(past)) * self._token.value)
        if request.arrived_at + timeout < time.monotonic() + least:
            message = f"the request would end after {least:.0f} s at the earliest (refuse_late)"
            raise LateError(message, self.until_next_start())

    def _least_wait(self, request: Request) -> float:
        """Return the seconds until a request of the same owner starts that will start before a new one, if some wait.

        The queue is not played anew for each arrival, since refused clients may come back faster than it can be. A
        request that the new one replaces does not count.
        """
        known, age = self._latest()
        before = [
            known.get((one.owner, one.id), Ahead(0)).seconds
            for one in self._registry.accepted()[0]
            if one.owner == request.owner and one.priority >= request.priority
            if request.supersede is None or one.supersede != request.supersede
        ]
        return max((seconds - age for seconds in before if seconds is not None), default=0.0)

    def _latest(self, key: tuple[str, str] | None = None) -> tuple[dict[tuple[str, str], Ahead], float]:
        """Return a forecast, if possible one that knows the request, and its age in seconds."""
        now = time.monotonic()
        known, at, took = self._known
        is_new = key is not None and key not in known
        if now - at >= max(0.0 if is_new else FRESH, RARELY * took):
            known, at, _ = self._known = self._look(), now, time.monotonic() - now
        return known, now - at

    def _look(self) -> dict[tuple[str, str], Ahead]:
        """Return what is ahead of each waiting request."""
        waiting, running = self._registry.accepted()
        past = [*self._past.copy()]
        known_lengths, new_share = lengths(past), fresh(past)
        now = time.monotonic()
        ages = [(now - one.arrived_at, False) for one in waiting]
        patience = Patience([*ages, *((one.waited, not one.started) for one in past)])
        jobs = [Job(one, new_share * one.n_prompt_tokens, answer_of(one, known_lengths)) for one in waiting]
        begun = [
            Job(one, one.n_prompt_tokens - one.usage().prompt_tokens, answer_of(one, known_lengths), waits=False)
            for one in running
            if not one.paused
        ]
        costs, order = (self._prompt.value, self._token.value), self._shares.copy()
        stays = patience.after(now)
        played = starts(jobs, begun, order, costs, stays, slots=self._slots, most=self._max_running)
        found = {NEXT if job is None else (job.request.owner, job.request.id): ahead for job, ahead in played}
        return found if costs[0] else {key: ahead._replace(seconds=None) for key, ahead in found.items()}


def fresh(past: Iterable[Past]) -> float:
    """Return the share of prompts that did not come from the cache."""
    begun = [one for one in past if one.started]
    return 1.0 - sum(one.n_cached for one in begun) / max(1, sum(one.n_prompt for one in begun))


def lengths(past: Iterable[Past]) -> list[float]:
    return [one.length for one in past if one.started] or [USUAL]


def answer_of(request: Request, known: Sequence[float]) -> float:
    """Return the expected number of tokens that are still to be generated, for the longest answer of a request, from
    the `known` lengths of answers.
    """
    left = 0.0
    for choice in request.choices:
        if choice.finish_reason is None:
            done = len(choice.generated)
            longer = [length - done for length in known if length > done]
            mean = sum(longer) / len(longer) if longer else choice.max_tokens - done
            left = max(left, min(mean, choice.max_tokens - done))
    return left


def starts(
    waiting: Iterable[Job],
    running: list[Job],
    shares: FairShare,
    costs: tuple[float, float],
    stays: Callable[[Request, float], float],
    *,
    slots: int,
    most: int | None,
) -> Iterator[tuple[Job | None, Ahead]]:
    """Iterate over the waiting jobs in the order in which they start, each with what is ahead of it; the last one,
    None, stands for the next request.

    The jobs of an owner wait in their order; the oldest running one is first, and an owner has `most` of those at most.
    The `costs` are the seconds of a token of a prompt, and of a step that decodes. `stays` returns the probability that
    a waiting request is still there after a number of seconds.
    """
    prompt_seconds, step_seconds = costs
    queues = defaultdict[str, deque[Job]](deque)
    for job in waiting:
        queues[job.request.owner].append(job)
    clock, steps, position = 0.0, 0.0, 0
    n_tokens = 0.0
    for job in running:
        job.end = job.answer
        clock += job.prompt * prompt_seconds
        n_tokens += job.prompt + job.answer
    while any(queues.values()):
        held = Counter(job.request.owner for job in running)
        heads = [queue[0] for owner, queue in queues.items() if queue and (most is None or held[owner] < most)]
        best = shares.next_start(heads, running)
        other = None if best is None or len(running) < slots else shares.preempted_for(best, running)
        if best is None or (len(running) >= slots and other is None):
            first = min(running, key=lambda one: one.end)
            running.remove(first)
            clock += max(0.0, first.end - steps) * step_seconds
            steps = max(steps, first.end)
            continue
        job = queues[best.request.owner].popleft()
        if other is not None:
            running.remove(other)
            other.prompt, other.answer = 0.0, max(0.0, other.end - steps)
            own = queues[other.request.owner]
            own.insert(sum(one.request.priority > other.request.priority for one in own), other)
        if job.waits:
            job.waits, position = False, position + 1
            yield job, Ahead(position, round(n_tokens), clock)
            share = stays(job.request, clock)
            job.prompt, job.answer = share * job.prompt, share * job.answer
            n_tokens += job.prompt + job.answer
        shares.note_start(job)
        clock += job.prompt * prompt_seconds
        job.end = steps + job.answer
        running.append(job)
    if len(running) >= slots:
        clock += max(0.0, min(one.end for one in running) - steps) * step_seconds
    yield None, Ahead(position + 1, round(n_tokens), clock)
