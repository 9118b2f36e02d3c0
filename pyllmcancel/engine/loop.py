"""The engine thread's loop: it starts requests, computes planned steps, publishes results, and ends requests.

One turn: end cancelled requests; expire late ones; pause requests that are not read, and resume those that are. Then
publish, start requests, plan, publish; look for cancels once more; compute a step with the GIL released; take its
results. The workload decides what to compute: `generation`, or `embeddings.workload`.

A workload may begin the next step, of the same sequences, while this thread takes the results of the last one: one step
*ahead* at most. The turn beside that step changes nothing: it publishes, looks for cancels and other changes, and waits
for the step. If nothing has changed by then, another step has begun; else the next turn is one at rest, as above.

Idle requests are paused while foreground requests wait or compute, and their step is aborted when those come.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.engine.slots import Jobs
from pyllmcancel.errors import error_text
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.observer import PartState, StepPart, StepRecord
from pyllmcancel.requests.registry import PREPARING_SECONDS
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import Outbox
from pyllmcancel.scheduling.workload import Finished, Progress
from pyllmcancel.step import StepStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyllmcancel.embeddings.workload import Embedding
    from pyllmcancel.engine.generation import Generation
    from pyllmcancel.pooling import EmbedResult
    from pyllmcancel.requests.endings import Endings
    from pyllmcancel.requests.observer import Observer, StepTrace
    from pyllmcancel.requests.registry import Registry
    from pyllmcancel.requests.watcher import Watcher
    from pyllmcancel.scheduling.workload import StepMember, Update
    from pyllmcancel.step import StepItem, StepResult

logger = logging.getLogger("pyllmcancel.engine")

# seconds without a request until idle housekeeping, so that a client that continues at once is not delayed
IDLE_AFTER = 0.1
MAX_LEFT = 256  # requests that a step's record names as those that left


class ComputedStep(NamedTuple):
    """A step, and the members that it computed for. `began` is in monotonic seconds, `seconds` is the duration."""

    items: list[StepItem]
    members: list[StepMember]
    outcome: StepResult | EmbedResult
    began: float
    seconds: float

    @property
    def n_tokens(self) -> int:
        return sum(item.n_rows for item in self.items)

    @property
    def is_idle(self) -> bool:
        """True for a step of idle requests, which others never share."""
        return self.members[0].request.is_idle


def computed_ahead(items: list[StepItem], members: list[StepMember], outcome: StepResult) -> ComputedStep:
    """Make the record of a step that had begun by itself."""
    seconds = (outcome.decode_us + outcome.sample_us) / 1e6
    return ComputedStep(items, members, outcome, outcome.began_us / 1e6, seconds)


class EngineLoop:
    """Runs in one thread, from :meth:`run`; for other threads there are `stalled_for` and `occupancy`."""

    def __init__(
        self,
        workload: Generation | Embedding,
        registry: Registry,
        endings: Endings,
        watcher: Watcher,
        *,
        observer: Observer,
        trace: StepTrace,
    ) -> None:
        self._workload = workload
        self._scheduler = workload.scheduler
        self._steps = workload.steps
        self._registry = registry
        self._endings = endings
        self._watcher = watcher
        self._observer = observer
        self._trace = trace
        self._outbox = Outbox()
        self.jobs = Jobs()
        self._running: list[Request] = []
        self._foreground_came = workload.new_flag()  # foreground requests, since the turn began
        self._foreground_ran_at = 0.0  # monotonic seconds
        self._n_steps = 0
        self._last_step: StepRecord | None = None
        self._left: list[Request] = []  # ended by their cancellers while a step ran; they still hold their slots
        self._members_ahead: list[StepMember] = []  # of the step ahead; some may have ended when it is recorded
        # Written by the engine thread, which replaces the whole; read from any thread.
        self.occupancy = self._scheduler.occupancy()
        # Monotonic seconds; written by the engine thread, read by health checks.
        self._step_began: float | None = None

    def run(self) -> None:
        """Work until the registry is closed and everything has ended."""
        while self._steps.ahead or self._computes() or self._wait_for_work():
            self.turn()
        self.jobs.close()
        self._workload.close()

    def turn(self) -> None:
        """Do one iteration with one step at most, whose events are published when the next turn, or the wait,
        begins.
        """
        if self._steps.ahead:
            self._turn_beside_step()
        else:
            self._turn_at_rest()

    def _turn_beside_step(self) -> None:
        # Events come first, because all that follows takes time.
        self._outbox.flush()
        self._collect(goes_on=not self._cancelled() and self._workload.is_steady(self._running))

    def _turn_at_rest(self) -> None:
        # Before anything is looked at: news that arrive from here on keep the next step from running ahead.
        self._steps.allow_ahead()
        self._foreground_came = self._workload.new_flag()
        self._registry.on_foreground = self._foreground_came.set
        # Before admission: a request that supersedes another finds its slot and cells given back. Endings are published
        # before admission, which may copy cells.
        self._end_cancelled()
        self.jobs.run_ready()
        self._report(self._workload.expire(self._running))
        # Before admission, too: the next request may wait for nothing but a slot that is given back here.
        self._workload.pause(self._running, foreground_comes=self._has_idle and self._registry.foreground_comes)
        self._publish()
        self._start_waiting()
        self._step_began = time.monotonic()  # a draft model may compute
        items, updates = self._workload.plan(self._observer)
        self._step_began = None
        # Publish endings from planning before the step.
        self._report(updates)
        self._publish()
        if items:
            self._maintain()
            self.occupancy = self._scheduler.occupancy()  # the last look for as long as steps run ahead
            # Once more: all of this took time, and no step may begin for a client that has left.
            if self._cancelled() or self._must_yield(items):
                self._scheduler.resync(items)  # undoes what planning noted
            else:
                self._step(items)

    def _must_yield(self, items: list[StepItem]) -> bool:
        """Return True if a step of idle requests must not begin, since foreground requests have come. Else have it
        aborted when they come.
        """
        if not (self._has_idle and any(member.request.is_idle for member in self._members_of(items))):
            return False
        if self._foreground_came.is_set():
            return True
        self._workload.core.give_way(self._foreground_came)
        return False

    def _maintain(self) -> None:
        """Cache housekeeping before a step. Beside idle requests it is that of an idle machine."""
        now = time.monotonic()
        if self._foreground_runs or not self._has_idle:
            self._foreground_ran_at = now
            self._scheduler.maintain()
        elif now > self._foreground_ran_at + IDLE_AFTER:
            self._scheduler.maintain_idle()

    def stalled_for(self) -> float:
        """Seconds since the running step began; 0 between steps. May be called from any thread."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def bury(self, died_of: BaseException) -> None:
        """End every request before the thread dies of an error. If this call raises, call it again."""
        self._step_began = None
        self.jobs.close()
        self._outbox.flush()  # the thread may have died while it wrote an ending
        failure: Exception | None = None
        for request in self._registry.take_all(died_of):
            try:
                self._endings.bury(request, self._outbox, f"the engine died: {error_text(died_of)}")
            except Exception as error:
                failure = error  # the other requests must end all the same
        self._outbox.flush()
        if failure is not None:
            raise failure

    def _computes(self) -> bool:
        return any(self._workload.computes(request) for request in self._running)

    def _wait_for_work(self) -> bool:
        """Wait; return True if there may be work, and False at the end."""
        self._publish()
        wait = partial(self._registry.wait_for_work, has_paused=bool(self._running))
        # Those that prepare are not waited for without end.
        limit = PREPARING_SECONDS if self._registry.has_foreground else None
        has_work = wait(0.0)
        if has_work is None:
            self._workload.core.rest()
            has_work = wait(IDLE_AFTER)
        while has_work is None and self._scheduler.maintain_idle():
            self._publish()
            has_work = wait(0.0)
        return wait(limit) is not False if has_work is None else has_work

    # -- requests: in and out -----------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while (request := self._registry.take_next(self._choose, foreground_runs=self._foreground_runs)) is not None:
            self._watcher.look((request,))
            if request.cancellation.requested:
                # The request was cancelled while it waited, or just after it left the queue: it never had a slot.
                self._endings.conclude(request, FinishReason.CANCELLED, self._outbox)
            else:
                self._running.append(request)
                self._report(self._workload.start(request, self._observer))
                if request not in self._running:
                    break  # its answer was known: a flood of such requests, for which slots are no limit, has to wait

    @property
    def _has_idle(self) -> bool:
        return any(request.is_idle for request in self._running)

    @property
    def _foreground_runs(self) -> bool:
        return any(not (request.is_idle or request.paused) for request in self._running)

    def _choose(self, heads: Sequence[Request]) -> Request | None:
        cancelled = next((request for request in heads if request.cancellation.requested), None)
        return self._scheduler.choose(heads) if cancelled is None else cancelled

    def _end_cancelled(self) -> None:
        left, self._left = self._left, []
        for request in left:
            self._workload.release(request, keep=True)
            self._remove(request)
        for request in self._cancelled():
            self._end(request, FinishReason.CANCELLED)

    def _cancelled(self) -> list[Request]:
        """Return running requests that are cancelled. Clients of paused requests are not checked: no step begins for
        them.
        """
        self._watcher.look([request for request in self._running if not request.paused])
        return [request for request in self._running if request.cancellation.requested]

    def _end(
        self, request: Request, finish_reason: FinishReason, *, keep: bool = True, error: str | None = None
    ) -> None:
        """End a request before it is complete: give its slots back first, then send the ending."""
        self._workload.release(request, keep=keep)
        self._finish(Finished(request, finish_reason, error=error))

    def _report(self, updates: Iterable[Update]) -> None:
        for update in updates:
            match update:
                case Progress(request, delta):
                    self._outbox.add(request.sink, delta)
                case Finished():
                    self._finish(update)

    def _finish(self, finished: Finished) -> None:
        request, finish_reason, last, error, param = finished
        self._remove(request)
        # The slots are freed before the ending: a reader in a plain thread gets the ending at once, and finds its slots
        # free.
        self.occupancy = self._scheduler.occupancy()
        self._endings.conclude(request, finish_reason, self._outbox, last=last, error=error, param=param)

    def _remove(self, request: Request) -> None:
        self._running.remove(request)
        # Known answers end without a step, any number of them before the next one.
        if self._last_step is not None and len(self._last_step.left) < MAX_LEFT:
            self._last_step.left.append(request.id)

    def _publish(self) -> None:
        self.occupancy = self._scheduler.occupancy()
        self._outbox.flush()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _step(self, items: list[StepItem]) -> None:
        members = self._members_of(items)
        began = self._step_began = time.monotonic()
        with self._rest_may_end(members):
            outcome = self._steps.compute(items)
        self._end_step(ComputedStep(items, members, outcome, began, time.monotonic() - began))

    def _collect(self, *, goes_on: bool) -> None:
        items, members = self._steps.ahead, self._members_ahead
        with self._rest_may_end(members):
            outcome = self._steps.collect(goes_on=goes_on)
        self._end_step(computed_ahead(items, members, outcome))

    @contextmanager
    def _rest_may_end(self, members: Iterable[StepMember]) -> Iterator[None]:
        """While a step of these members computes, inside the block, the thread that cancels another running request
        ends it. Requests that were cancelled before are ended here.
        """
        kept = {member.request for member in members}.union(self._left)
        rest = [one for one in self._running if one not in kept and not one.awaits_encoding]
        try:
            for request in self._registry.offer(rest):
                self._endings.conclude_withdrawn(request)
            yield
        finally:
            self._left += self._registry.take_back(rest)

    def _end_step(self, step: ComputedStep) -> None:
        """Note the step that has begun after this one, if one has: its members, its time, its cells. Record this step,
        and take its results.
        """
        items = self._steps.ahead
        self._step_began = time.monotonic() if items else None
        if items:
            self._members_ahead = self._members_of(items)
            # The context cannot be asked while a step computes.
            self.occupancy = self.occupancy._replace(cells=self.occupancy.cells + step.n_tokens)
        self._record(step)
        self._take(step)

    def _members_of(self, items: list[StepItem]) -> list[StepMember]:
        return [self._workload.member(item) for item in items]

    def _take(self, step: ComputedStep) -> None:
        """Take over the results of a step."""
        items, outcome = step.items, step.outcome
        match outcome.status:
            case StepStatus.OK:
                self._scheduler.cost.observe(step.n_tokens, step.seconds, idle=step.is_idle)
                self._take_rows(outcome)
            case StepStatus.ABORTED:
                self._scheduler.cost.aborted(step.n_tokens, idle=step.is_idle)
                self._scheduler.resync(items)
            case StepStatus.NO_ROOM:
                if not self._scheduler.recover_from_no_room():
                    self._fail(items, "the context has no room for this request")
            case StepStatus.INVALID | StepStatus.FAILED_ALLOC | StepStatus.FAILED_COMPUTE:
                self._scheduler.resync(items)
                self._isolate_failure(items, outcome.status)

    def _take_rows(self, outcome: StepResult | EmbedResult) -> None:
        items, members = self._steps.ahead, self._members_ahead
        rows: Sequence[Any] = outcome.rows
        updates = self._workload.take(rows, self._observer)
        late = self._steps.take_late()
        if late is None:
            self._report(updates)
            return
        # The step is recorded before the endings are sent, so that no later record names a request that has ended.
        self._step_began = None
        step = computed_ahead(items, members, late)
        self._record(step)
        self._report(updates)
        self._take(step)

    def _isolate_failure(self, items: list[StepItem], status: StepStatus) -> None:
        """Compute each sequence of a failed step alone, and fail the one that fails alone."""
        logger.warning("step %d of %d sequences failed: %s", self._n_steps, len(items), status.name.lower())
        if len(items) > 1:
            self._scheduler.suspect(item.seq for item in items)
        else:
            self._fail(items, f"the computation failed ({status.name.lower()})")

    def _fail(self, items: list[StepItem], error: str) -> None:
        held = [item for item in items if self._scheduler.holds(item.seq)]
        for request in {member.request for member in self._members_of(held)}:
            self._end(request, FinishReason.ERROR, keep=False, error=error)

    def _record(self, step: ComputedStep) -> None:
        outcome = step.outcome
        self._n_steps += 1
        sequences = []
        n_wasted = n_survivors = 0
        for item, member in zip(step.items, step.members, strict=True):
            request = member.request
            part = StepPart(request.id, member.index, member.phase, item.n_rows, item.seq, request.owner)
            if item.draft:
                part = part._replace(n_drafted=len(item.draft), n_accepted=n_accepted(outcome.rows, item.seq))
            sequences.append(part)
            cancelled = request.cancellation.requested
            n_survivors += not cancelled
            if cancelled or outcome.status is StepStatus.ABORTED:
                n_wasted += item.n_rows
        status = outcome.status.name.lower()
        record = StepRecord(
            self._n_steps,
            step.began,
            step.seconds,
            tuple(sequences),
            status,
            outcome.spared,
            n_survivors,
            outcome.n_threads,
            tuple(map(state_of, step.members)),
            step.is_idle,
        )
        self._last_step = record
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", worded(record))
        self._trace.append(record)
        self._observer.step_done(record, n_wasted)


def n_accepted(rows: Sequence[Any], seq: int) -> int:
    """Return the number of drafted tokens that a step accepted for a sequence: one token more is sampled."""
    return next((max(0, len(row.sampled) - 1) for row in rows if row.seq == seq), 0)


def state_of(member: StepMember) -> PartState:
    choices, cancelled = member.request.choices, member.request.cancellation.requested
    if not choices:
        return PartState(0, 0, cancelled)
    choice = choices[member.index]
    return PartState(len(choice.generated), choice.max_tokens, cancelled)


def worded(record: StepRecord) -> str:
    """Return the log's line about a step."""
    parts = [
        f"{part.request} {part.phase} {part.n_tokens}, generated {state.n_generated} of {state.max_tokens}"
        + (", cancelled" if state.cancelled else "")
        for part, state in zip(record.sequences, record.states, strict=True)
    ]
    return f"step {record.number} {record.status} in {record.seconds * 1e3:.1f} ms: {'; '.join(parts)}"
