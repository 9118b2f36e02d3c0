"""The engine thread, a step at a time: tokens, endings, faults, preemption."""

import threading

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.events import FinishReason, RequestStatus, Usage
from pyllmcancel.step import LogitFault, StepStatus
from tests.support import fake_native
from tests.support.driver import Driver, MakeDriver
from tests.support.step_gate import TEST_LIMIT

FAILURES = [StepStatus.INVALID, StepStatus.FAILED_ALLOC, StepStatus.FAILED_COMPUTE]


def test_compute_threads_are_left_spinning_between_steps_and_rest_when_nothing_follows(driver: Driver) -> None:
    driver.answered(max_tokens=5)
    driver.engine.close()
    # After the request, and before it if the engine had been there first.
    assert 1 <= driver.context.n_rests <= 2


def test_while_idle_a_slot_is_made_ready_for_the_next(make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.engine.loop.IDLE_AFTER", 0.0)
    driver = make_driver(spare_seqs=0)
    driver.context.kv_unified = False
    copied, copy_out = threading.Event(), driver.context.copy_out

    def told(seq: int, *, max_bytes: int) -> fake_native.SwappedPrefix | None:
        prefix = copy_out(seq, max_bytes=max_bytes)
        copied.set()
        return prefix

    monkeypatch.setattr(driver.context, "copy_out", told)
    for token in (1, 2):
        driver.answered([token] * 20, max_tokens=1)
    assert copied.wait(TEST_LIMIT)
    driver.engine.close()
    occupancy = driver.engine.occupancy()
    assert (occupancy.idle_cells, occupancy.swapped_bytes) == (40, 20 * fake_native.BYTES_PER_CELL)


def test_a_client_that_goes_on_meets_no_housekeeping(make_driver: MakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.engine.loop.IDLE_AFTER", TEST_LIMIT)
    driver = make_driver(spare_seqs=0)
    driver.context.kv_unified = False
    for token in (1, 2):
        driver.answered([token] * 20, max_tokens=1)
    driver.engine.close()
    assert driver.engine.occupancy().swapped_bytes == 0


def test_a_cancelled_request_reports_what_had_been_computed_and_a_retry_goes_on_there(driver: Driver) -> None:
    tracked = driver.submit([5] * 60)
    driver.step(2)
    driver.cancel(tracked)
    assert tracked.ending.usage == Usage(32, 0, 0)
    assert tracked.ending.phase is RequestStatus.PREFILL
    assert driver.answered([5] * 60).ending.usage.cached_tokens == 32


@pytest.mark.parametrize("fault", [LogitFault.NOT_FINITE, LogitFault.ALL_EQUAL, LogitFault.GRAMMAR, *FAILURES])
def test_one_requests_fault_is_its_own(make_driver: MakeDriver, fault: LogitFault | StepStatus) -> None:
    driver = make_driver(parallel=3)
    driver.context.faults[tuple(b"culprit")] = fault
    for number in range(2):
        driver.submit(f"neighbour {number}", max_tokens=6)
    driver.step()
    culprit = driver.submit("culprit")
    culprit.fails = True
    driver.run_to_the_end()
    assert culprit.ending.finish_reason is FinishReason.ERROR


@pytest.mark.parametrize("fault", [LogitFault.NOT_FINITE, StepStatus.FAILED_COMPUTE])
def test_what_a_failed_request_has_computed_is_not_kept(driver: Driver, fault: LogitFault | StepStatus) -> None:
    culprit = driver.submit("culprit, with a prompt of several steps")
    culprit.fails = True
    driver.step()
    driver.context.faults[tuple(b"culprit")] = fault
    driver.run_to_the_end()
    assert driver.context.n_cells_used == 0


def test_a_context_without_room_makes_the_newest_wait_and_fails_none(driver: Driver) -> None:
    for number in range(2):
        driver.submit([number] * 30, max_tokens=5)
    driver.context.lose_cells(driver.context.n_ctx - 50)  # fewer than the scheduler counts on
    driver.run_to_the_end()
    statuses = [record.status for record in driver.watcher.steps]
    assert statuses.count("no_room") <= 3, "a request that found no room does not try again before another has ended"


def test_a_request_that_finds_no_room_alone_fails(driver: Driver) -> None:
    tracked = driver.submit()
    tracked.fails = True
    driver.context.next_status.append(StepStatus.NO_ROOM)
    driver.step()
    assert tracked.ending.error == "the context has no room for this request"


def test_the_record_of_a_step_tells_how_many_threads_computed_it(driver: Driver) -> None:
    driver.context.n_threads = 3
    driver.answered(max_tokens=1)
    assert [record.threads for record in driver.engine.trace.snapshot()] == [3]


@pytest.mark.parametrize(
    ("options", "adapts"),
    [({}, True), ({"threads": 2}, False), ({"threads_batch": 2}, False), ({"threads": 1, "threads_batch": 2}, False)],
)
def test_a_number_of_threads_that_was_chosen_is_fixed(options: dict[str, int], adapts: bool) -> None:
    assert EngineConfig(**options).thread_options()["adapt_threads"] is adapts
