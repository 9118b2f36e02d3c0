"""A cancel from every source meets a request in every phase, with one choice and with three, on three kinds of memory.

Each cell is driven deterministically: the steps of the engine wait for the test, and so does the engine's thread at the
places between steps. `make_driver` checks all invariants again when everything has ended.
"""

from collections.abc import Callable

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import FinishReason
from tests.races import phases, sources
from tests.support.driver import AHEAD, MEMORIES, Driver, complete
from tests.support.invariants import check_invariants
from tests.support.marks import mostly_long

# There is no stream before submit has returned one.
CELLS = [
    pytest.param(source, phase, id=f"{source.__name__}-{phase.__name__}")
    for phase in (*phases.IN_THE_QUEUE, *phases.IN_A_SLOT)
    for source in sources.REASONS
    if (source, phase) != (sources.disconnect, phases.before_submit_returns)
]


SETUPS = MEMORIES | AHEAD


@pytest.mark.parametrize("memory", mostly_long(SETUPS, "attention"))
@pytest.mark.parametrize("n", mostly_long([1, 3], 1))
@pytest.mark.parametrize(("source", "phase"), CELLS)
def test_a_cancel_ends_its_request_and_touches_no_other(
    make_driver: Callable[..., Driver], source: sources.Source, phase: phases.Phase, n: int, memory: str
) -> None:
    driver = make_driver(**SETUPS[memory], parallel=1 if phase in phases.IN_THE_QUEUE else n + 1)
    neighbour = driver.submit("a neighbour", max_tokens=60)
    driver.step(3)
    case = phase(driver, n)
    with source(driver, case):
        case.release()
    driver.settle()
    if phase not in phases.IN_THE_QUEUE and not case.tracked.ended:
        driver.step()  # a cancel that came too late for the next step's plan
    check_ending(case, sources.REASONS[source])
    check_invariants(driver)
    driver.run_to_the_end()
    if source is sources.shutdown:
        assert neighbour.ending.cancel_reason is CancelReason.SHUTDOWN
    else:
        assert complete(neighbour)
        # The cancelled request's session, its slots and its prompt are as good as new.
        for prompt in (phases.SHORT, phases.LONG):
            assert complete(driver.answered(prompt, supersede=phases.KEY))


def check_ending(case: phases.Case, reason: CancelReason) -> None:
    ending = case.tracked.ending
    if case.in_time:
        assert (ending.finish_reason, ending.cancel_reason) == (FinishReason.CANCELLED, reason)
        last = {delta.index: delta.finish_reason for delta in case.tracked.sink.deltas}
        assert None in last.values() or len(last) < len(case.request.choices), "the answer looks complete"
    else:
        assert ending.finish_reason is FinishReason.LENGTH
        assert not case.request.cancellation.requested


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("phase", phases.IN_A_SLOT[:-2], ids=lambda phase: phase.__name__)
def test_a_cancelled_request_is_gone_by_the_end_of_the_step_it_was_cancelled_in(
    make_driver: Callable[..., Driver], phase: phases.Phase, *, ahead: bool
) -> None:
    driver = make_driver(steps_ahead=ahead)
    driver.submit("a neighbour", max_tokens=60)
    driver.step(3)
    case = phase(driver, 1)
    n_steps = len(driver.watcher.steps)
    driver.engine.cancel(case.request)
    case.release()
    driver.settle()
    later = driver.watcher.steps[n_steps + 1 :]
    assert case.tracked.ended
    assert all(case.request.id not in {entry[0] for entry in record.sequences} for record in later)
    driver.run_to_the_end()


def test_a_deadline_that_has_passed_on_arrival_cancels_before_anything_is_computed(driver: Driver) -> None:
    driver.submit("a neighbour")  # its step is held, so that the next one cannot start
    late = driver.submit("no time at all", timeout=0.0, settle=False)
    assert late.ending.cancel_reason is CancelReason.DEADLINE
    assert all(late.request.id != entry[0] for record in driver.watcher.steps for entry in record.sequences)
    driver.run_to_the_end()
