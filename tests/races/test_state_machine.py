"""Random schedules of everything that can happen to an engine, with all invariants checked after each event.

``pytest -m "" tests/races/test_state_machine.py --hypothesis-profile=thorough`` runs 10,000 of up to 40 events.
"""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, QueueFullError
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.request import IDLE
from pyllmcancel.step import LogitFault, StepStatus
from tests.support.driver import MEMORIES, Driver, Tracked, cancel_session
from tests.support.invariants import check_invariants, check_nothing_left, counts_of_queue

KEYS = (None, "a", "b")
# Sessions and their parents. A root that is named as one, and a family of three generations.
FAMILIES = ((None, None), ("alone", None), ("root", None), ("child", "root"), ("grandchild", "child"))
OWNERS = ("", "other")
# Two share a beginning, so that prefixes are reused and shared; the longest takes three steps alone.
BEGINNINGS = ("x", "a common beginning, ", "a common beginning, and then something longer: ")
FAILURES = (StepStatus.INVALID, StepStatus.FAILED_ALLOC, StepStatus.FAILED_COMPUTE)
FAULTS = (LogitFault.NOT_FINITE, LogitFault.ALL_EQUAL, LogitFault.GRAMMAR, *FAILURES)
Family = tuple[str | None, str | None]
READER_REASONS = (CancelReason.DISCONNECT, CancelReason.STALLED, CancelReason.EXPLICIT, CancelReason.DEADLINE)


pytestmark = pytest.mark.timeout(3600)  # for the thorough profile

# Conditions of rules. With `assume` a rule that cannot be applied would end its whole schedule, unchecked.
some_request = precondition(lambda self: bool(self.driver.tracked))
some_live = precondition(lambda self: bool(self.live()))
step_held = precondition(lambda self: self.driver.gate.held() is not None)


class EngineSchedule(RuleBasedStateMachine):
    """The engine's steps wait for the rules; between two rules nothing moves."""

    @initialize(
        memory=st.sampled_from(["attention", "divided", "hybrid"]),
        parallel=st.integers(1, 3),
        n_ctx=st.sampled_from([72, 110, 400]),
        max_queue=st.sampled_from([2, 10]),
        max_running=st.sampled_from([None, 1, 2]),
        steps_ahead=st.booleans(),
    )
    def start(self, memory: str, **config: Any) -> None:
        self.driver = Driver(**MEMORIES[memory], **config)
        self.count = 0
        self.held: set[tuple[str, str | None]] = set()
        for owner in OWNERS:
            self.driver.engine.registry._families.declare(owner, "child", "root")
            self.driver.engine.registry._families.declare(owner, "grandchild", "child")

    def pick(self, number: int) -> Tracked:
        return self.driver.tracked[-1 - number % len(self.driver.tracked)]

    def live(self) -> list[Tracked]:
        return [tracked for tracked in self.driver.tracked if not tracked.ended]

    def pick_live(self, number: int) -> Tracked:
        return self.live()[-1 - number % len(self.live())]

    def count_failed(self) -> int:
        ended = [tracked for tracked in self.driver.tracked if tracked.ended]
        return sum(tracked.ending.finish_reason is FinishReason.ERROR for tracked in ended)

    @rule(
        owner=st.sampled_from(OWNERS),
        key=st.sampled_from(KEYS),
        family=st.sampled_from(FAMILIES),
        priority=st.sampled_from((-1, 0, 1, 40, IDLE)),
        beginning=st.sampled_from(BEGINNINGS),
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 6),
        stops=st.booleans(),
    )
    def submit(self, owner: str, key: str | None, family: Family, priority: int, stops: bool, **options: Any) -> None:
        self.count += 1
        session, parent = family
        name, prompt = f"r{self.count}", f"{options.pop('beginning')}{self.count:03}"
        origin = {"owner": owner, "supersede": key, "session": session, "parent": parent, "priority": priority}
        counts = self.driver.engine.counts(owner)
        n_tokens, stop = self.stop_of(prompt, options["max_tokens"]) if stops else (None, ())
        try:
            tracked = self.driver.submit(prompt, request_id=name, stop=stop, **origin, **options)
            tracked.expected = tracked.expected[:n_tokens]
        except QueueFullError:
            n_waiting, _ = counts_of_queue(self.driver, owner, priority == IDLE)
            assert n_waiting == self.driver.config.max_queue
            assert self.driver.engine.counts(owner) == counts
        except EngineClosedError:
            assert self.driver.engine.registry.closed
        else:
            if (owner, session) in self.held:
                assert tracked.request.cancellation.reason is CancelReason.EXPLICIT

    def stop_of(self, prompt: str, max_tokens: int) -> tuple[int | None, tuple[str, ...]]:
        """A stop string that ends the answer before its length does, if there is one, and after how many tokens."""
        answer = self.driver.model.greedy(prompt.encode(), max_tokens)
        for place, token in enumerate(answer[:-1]):
            if 32 < token < 127 and token not in answer[:place]:
                return place + 1, (chr(token),)
        return None, ()

    @some_live
    @rule(number=st.integers(0, 5))
    def submit_again_under_the_same_id(self, number: int) -> None:
        live = self.pick_live(number)
        counts = self.driver.engine.counts()
        with pytest.raises(InvalidRequestError, match="in use"):
            self.driver.submit("anything", request_id=live.request.id, owner=live.request.owner)
        assert self.driver.engine.counts() == counts

    @some_request
    @rule(number=st.integers(0, 5), reason=st.sampled_from(READER_REASONS))
    def cancel(self, number: int, reason: CancelReason) -> None:
        tracked = self.pick(number)
        can_win = not tracked.ended and not tracked.request.cancellation.requested
        assert self.driver.cancel(tracked, reason) == can_win

    @rule(
        owner=st.sampled_from(OWNERS),
        session=st.sampled_from(["alone", "root", "child"]),
        descendants=st.booleans(),
        hold=st.sampled_from([0.0, 0.0, 0.0, 600.0]),
    )
    def cancel_session(self, owner: str, session: str, *, descendants: bool, hold: float) -> None:
        before = [tracked.request for tracked in self.live()]
        cancelled = {request for request in before if request.cancellation.requested}
        found = cancel_session(self.driver.engine, session, owner=owner, descendants=descendants, hold=hold)
        self.driver.settle()
        members = {"root": {"root", "child", "grandchild"}, "child": {"child", "grandchild"}}.get(session, {session})
        members = members if descendants else {session}
        reached = [request for request in before if request.owner == owner and request.session in members]
        assert set(found or ()) == set(reached)
        assert all(request.cancellation.requested for request in reached)
        # And no other: of no other session, nor of another owner.
        assert {request for request in before if request.cancellation.requested} == cancelled | set(reached)
        if hold:
            self.held |= {(owner, member) for member in members}

    @some_request
    @rule(number=st.integers(0, 5))
    def stop_reading(self, number: int) -> None:
        self.driver.stop_reading(self.pick(number))

    @some_request
    @rule(number=st.integers(0, 5))
    def read_on(self, number: int) -> None:
        self.driver.read_on(self.pick(number))

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.driver.gate.held() is not None:
                self.driver.step()

    @rule(progress=st.sampled_from([0.3, 0.6, 0.95]))
    def compute_a_part_of_the_step(self, progress: float) -> None:
        self.driver.gate.move_on(progress)
        self.driver.settle()

    @step_held
    @rule(status=st.sampled_from(FAILURES))
    def step_that_fails(self, status: StepStatus) -> None:
        """A request that fails alone ends; a batch is taken apart, and none ends."""
        held = self.driver.gate.held()
        alone = next(tracked for tracked in self.driver.tracked if self.driver.holds(tracked))
        n_failed = self.count_failed()
        alone.fails = alone.fails or len(held.items) == 1
        self.driver.context.next_status.append(status)
        self.driver.step()
        if len(held.items) == 1:
            assert alone.ending.finish_reason is FinishReason.ERROR
        else:
            assert self.count_failed() == n_failed

    @step_held
    @rule()
    def step_without_room(self) -> None:
        """llama.cpp finds no cells: the newest gives way, and a single request fails."""
        if len(self.driver.context.open_seqs) == 1:
            next(tracked for tracked in self.driver.tracked if self.driver.holds(tracked)).fails = True
        self.driver.context.next_status.append(StepStatus.NO_ROOM)
        self.driver.step()

    @some_live
    @rule(number=st.integers(0, 5), fault=st.sampled_from(FAULTS))
    def make_one_faulty(self, number: int, fault: StepStatus | LogitFault) -> None:
        tracked = self.pick_live(number)
        tracked.fails = True
        self.driver.context.faults[tuple(tracked.prompt)] = fault

    @precondition(lambda self: not self.driver.engine.registry.closed)
    @rule(closes=st.sampled_from([True] + [False] * 9))
    def close(self, closes: bool) -> None:
        if not closes:  # rarely: little can happen afterwards
            return
        live = self.live()
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


class FewEngineSchedules(EngineSchedule):
    pass


TestEngineSchedule = pytest.mark.long(EngineSchedule.TestCase)
TestFewEngineSchedules = FewEngineSchedules.TestCase
TestFewEngineSchedules.settings = settings(max_examples=15)
