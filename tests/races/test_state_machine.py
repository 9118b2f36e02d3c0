"""Random schedules of everything that can happen to an engine, with all invariants checked after each event.

``pytest tests/races/test_state_machine.py --hypothesis-profile=thorough`` runs 10,000 schedules of up to 40 events.
"""

from __future__ import annotations

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, QueueFullError
from pyllmcancel.events import FinishReason
from pyllmcancel.step import LogitFault, StepStatus
from tests.support.driver import MEMORIES, Driver, Tracked
from tests.support.invariants import check_invariants, check_nothing_left

SESSIONS = (None, "a", "b")
# Two share a beginning, so that prefixes are reused and shared; the longest takes three steps alone.
BEGINNINGS = ("x", "a common beginning, ", "a common beginning, and then something longer: ")
FAILURES = (StepStatus.INVALID, StepStatus.FAILED_ALLOC, StepStatus.FAILED_COMPUTE)
FAULTS = (LogitFault.NOT_FINITE, LogitFault.ALL_EQUAL, LogitFault.GRAMMAR, *FAILURES)
READER_REASONS = (CancelReason.DISCONNECT, CancelReason.EXPLICIT, CancelReason.DEADLINE)


pytestmark = pytest.mark.timeout(3600)  # for the thorough profile


class EngineSchedule(RuleBasedStateMachine):
    """The engine's steps wait for the rules; between two rules nothing moves."""

    @initialize(
        memory=st.sampled_from(["attention", "divided", "hybrid"]),
        parallel=st.integers(1, 3),
        n_ctx=st.sampled_from([72, 110, 400]),
        max_queue=st.sampled_from([2, 10]),
    )
    def start(self, memory: str, parallel: int, n_ctx: int, max_queue: int) -> None:
        sizes = {"parallel": parallel, "n_ctx": n_ctx, "max_queue": max_queue}
        self.driver = Driver(**MEMORIES[memory], **sizes)
        self.count = 0

    def pick(self, number: int) -> Tracked:
        """One of the requests so far, the newest ones first."""
        assume(self.driver.tracked)
        return self.driver.tracked[-1 - number % len(self.driver.tracked)]

    def count_failed(self) -> int:
        ended = [tracked for tracked in self.driver.tracked if tracked.ended]
        return sum(tracked.ending.finish_reason is FinishReason.ERROR for tracked in ended)

    @rule(
        session=st.sampled_from(SESSIONS),
        beginning=st.sampled_from(BEGINNINGS),
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 6),
    )
    def submit(self, session: str | None, beginning: str, n: int, max_tokens: int) -> None:
        self.count += 1
        name, prompt = f"r{self.count}", f"{beginning}{self.count:03}"
        counts = self.driver.engine.counts()
        try:
            self.driver.submit(prompt, session=session, n=n, max_tokens=max_tokens, request_id=name)
        except QueueFullError:
            assert counts.waiting == self.driver.config.max_queue
            assert self.driver.engine.counts() == counts
        except EngineClosedError:
            assert self.driver.engine.registry.closed

    @rule(number=st.integers(0, 5))
    def submit_again_under_the_same_id(self, number: int) -> None:
        live = self.pick(number)
        assume(not live.ended)
        counts = self.driver.engine.counts()
        with pytest.raises(InvalidRequestError, match="in use"):
            self.driver.submit("anything", request_id=live.request.id, session=live.request.session)
        assert self.driver.engine.counts() == counts

    @rule(number=st.integers(0, 5), reason=st.sampled_from(READER_REASONS))
    def cancel(self, number: int, reason: CancelReason) -> None:
        tracked = self.pick(number)
        can_win = not tracked.ended and not tracked.request.cancellation.requested
        assert self.driver.cancel(tracked, reason) == can_win

    @rule(session=st.sampled_from(SESSIONS[1:]))
    def cancel_session(self, session: str) -> None:
        found = self.driver.engine.cancel_session(session)
        self.driver.settle()
        assert found is None or not found.live
        newest = self.driver.engine.registry.newest(session)
        assert newest is None or newest.cancelling

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.driver.gate.held() is not None:
                self.driver.step()

    @rule(progress=st.sampled_from([0.3, 0.6, 0.95]))
    def compute_a_part_of_the_step(self, progress: float) -> None:
        self.driver.gate.move_on(progress)
        self.driver.settle()

    @rule(status=st.sampled_from(FAILURES))
    def step_that_fails(self, status: StepStatus) -> None:
        """Whoever fails alone ends; a batch is taken apart, and nobody ends."""
        held = self.driver.gate.held()
        assume(held is not None)
        alone = next(tracked for tracked in self.driver.tracked if self.driver.holds(tracked))
        n_failed = self.count_failed()
        alone.fails = alone.fails or len(held.items) == 1
        self.driver.context.next_status.append(status)
        self.driver.step()
        if len(held.items) == 1:
            assert alone.ending.finish_reason is FinishReason.ERROR
        else:
            assert self.count_failed() == n_failed

    @rule()
    def step_without_room(self) -> None:
        """llama.cpp finds no cells: the newest gives way, and whoever is alone fails."""
        assume(self.driver.gate.held() is not None)
        if len(self.driver.context.open_seqs) == 1:
            next(tracked for tracked in self.driver.tracked if self.driver.holds(tracked)).fails = True
        self.driver.context.next_status.append(StepStatus.NO_ROOM)
        self.driver.step()

    @rule(number=st.integers(0, 5), fault=st.sampled_from(FAULTS))
    def make_one_faulty(self, number: int, fault: StepStatus | LogitFault) -> None:
        tracked = self.pick(number)
        assume(not tracked.ended)
        tracked.fails = True
        self.driver.context.faults[tuple(tracked.prompt)] = fault

    @precondition(lambda self: not self.driver.engine.registry.closed)
    @rule(closes=st.sampled_from([True] + [False] * 9))
    def close(self, closes: bool) -> None:
        assume(closes)
        live = [tracked for tracked in self.driver.tracked if not tracked.ended]
        self.driver.engine.close()
        assert all(tracked.request.cancellation.requested for tracked in live)

    @invariant()
    def invariants_hold(self) -> None:
        check_invariants(self.driver)

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        try:
            self.driver.run_to_the_end()
            check_nothing_left(self.driver)
        finally:
            self.driver.close()


TestEngineSchedule = EngineSchedule.TestCase
