"""Clients that show to have left: no step begins with them, whatever the thread of their readers is at."""

from collections.abc import Callable

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.observer import StepRecord
from tests.support.driver import Driver, Tracked


def assert_left(tracked: Tracked) -> None:
    assert (tracked.ending.finish_reason, tracked.ending.cancel_reason) == (
        FinishReason.CANCELLED,
        CancelReason.DISCONNECT,
    )
    assert len(tracked.sink.endings) == 1


def leave_when_planned(driver: Driver, tracked: Tracked) -> None:
    """Leave as late as can be: the next step is planned, and only what takes some milliseconds now and then is left."""
    scheduler = driver.engine.workload.scheduler
    maintain = scheduler.maintain

    def leave_and_maintain() -> None:
        tracked.client.left = True
        maintain()

    scheduler.maintain = leave_and_maintain  # type: ignore[method-assign]


def test_a_step_that_was_planned_and_not_computed_takes_no_turn(make_driver: Callable[..., Driver]) -> None:
    """Prompts and decodes take turns: it is the decodes' turn still."""
    driver = make_driver(memory_kind="recurrent", parallel=3)
    stays, leaves = (driver.submit(prompt, max_tokens=30) for prompt in ("stays", "leaves"))
    driver.step_until(lambda: bool(stays.sink.deltas and leaves.sink.deltas))
    prompt = driver.submit("a prompt of many steps" * 10)
    driver.step_until(lambda: driver.holds(prompt))
    leave_when_planned(driver, leaves)
    driver.step()
    assert_left(leaves)
    assert driver.holds(stays)
    assert not driver.holds(prompt)


def test_when_the_only_one_leaves_no_step_follows(driver: Driver) -> None:
    leaves = driver.submit(max_tokens=6)
    driver.step(2)

    def leave(_: StepRecord) -> None:
        leaves.client.left = True

    driver.watcher.on_step_done = leave
    driver.step()
    assert_left(leaves)
    assert leaves.n_steps_at_end == 3
