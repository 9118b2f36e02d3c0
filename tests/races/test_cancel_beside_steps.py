"""A cancel of a request that the running step does not compute ends the request while the step runs."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import RequestStatus
from pyllmcancel.requests.observer import StepRecord
from pyllmcancel.requests.request import Request
from tests.races.phases import LONG
from tests.support.driver import AHEAD, MEMORIES, Driver, Tracked, complete
from tests.support.invariants import check_invariants

SHORT = "a short prompt"


def admitted(driver: Driver, prompt: str, **options: Any) -> Tracked:
    """It comes while a step runs, and has a slot in the next one, which is held."""
    tracked = driver.submit(prompt, **options)
    driver.step()
    return tracked


def begun(driver: Driver, **options: Any) -> Tracked:
    """Its answer has begun."""
    tracked = driver.submit(SHORT, max_tokens=200, **options)
    driver.step_until(lambda: tracked.request.status is RequestStatus.DECODE)
    return tracked


def behind_a_prompt(driver: Driver) -> Tracked:
    """Admitted; nothing of it was computed."""
    driver.submit(LONG, max_tokens=2)
    return admitted(driver, "also one of several steps " * 2)


def with_the_same_prompt(driver: Driver) -> Tracked:
    """Two tabs of one conversation."""
    driver.submit(LONG, max_tokens=2)
    driver.step()
    return admitted(driver, LONG)


def with_three_choices(driver: Driver) -> Tracked:
    driver.submit(LONG, max_tokens=2)
    return admitted(driver, SHORT * 2, n=3)


def between_two_chunks(driver: Driver) -> Tracked:
    """A part of its prompt is computed; the step is of another owner's prompt."""
    tracked = driver.submit(LONG, owner="one")
    driver.submit(LONG[::-1], owner="another", max_tokens=2)
    driver.step_until(lambda: tracked.request.choices[0].n_committed > 0 and not driver.holds(tracked))
    return tracked


def decoding(driver: Driver) -> Tracked:
    """The step is of a prompt."""
    tracked = begun(driver)
    driver.submit(LONG, max_tokens=2)
    driver.step_until(lambda: not driver.holds(tracked))
    return tracked


def paused(driver: Driver) -> Tracked:
    tracked = begun(driver)
    driver.stop_reading(tracked)
    driver.submit(LONG, max_tokens=2)
    driver.step_until(lambda: tracked.request.paused and not driver.holds(tracked))
    return tracked


def preempted(driver: Driver) -> Tracked:
    """Its slot is a more urgent request's."""
    tracked = begun(driver, priority=-1)
    for number in range(driver.config.parallel):
        driver.submit(f"{LONG} {number}", priority=1, max_tokens=40)
    driver.step_until(lambda: tracked.request.choices[0].seq is None)
    return tracked


WAITING = (behind_a_prompt, with_the_same_prompt, with_three_choices, between_two_chunks)
SITUATIONS = (*WAITING, decoding, paused, preempted)


def run_the_others(driver: Driver, tracked: Tracked) -> None:
    driver.run_to_the_end()
    assert all(complete(other) for other in driver.tracked if other is not tracked)


@pytest.mark.parametrize("memory", MEMORIES | AHEAD)
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.__name__)
def test_it_ends_while_the_step_runs(make_driver: Callable[..., Driver], situation: Any, memory: str) -> None:
    driver = make_driver(parallel=4, **(MEMORIES | AHEAD)[memory])
    tracked = situation(driver)
    held, choices = driver.gate.held(), tracked.request.choices
    assert held is not None
    assert not driver.holds(tracked)
    assert tracked.request.status is not RequestStatus.WAITING
    usage = tracked.request.usage()
    assert driver.engine.cancel(tracked.request, CancelReason.DEADLINE)
    assert tracked.ended
    assert driver.gate.held() is held, "the step goes on"
    assert (tracked.ending.cancel_reason, tracked.ending.usage) == (CancelReason.DEADLINE, usage)
    found = driver.engine.registry.find(tracked.request.id, owner=tracked.request.owner)
    assert (found.status, found.slots) == (RequestStatus.FINISHED, ())  # type: ignore[union-attr]
    check_invariants(driver)
    driver.step()
    assert all(choice.seq is None for choice in choices)
    check_invariants(driver)
    run_the_others(driver, tracked)


@pytest.mark.parametrize("memory", MEMORIES | AHEAD)
def test_one_that_is_cancelled_after_the_last_look_ends_before_the_step(
    make_driver: Callable[..., Driver], memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(parallel=4, **(MEMORIES | AHEAD)[memory])
    tracked = behind_a_prompt(driver)
    registry = driver.engine.registry
    offer = registry.offer

    def cancelled_before(requests: Iterable[Request]) -> list[Request]:
        driver.engine.cancel(tracked.request, CancelReason.DEADLINE)
        return offer(requests)

    monkeypatch.setattr(registry, "offer", cancelled_before)
    driver.step()
    assert driver.gate.held() is not None
    assert not driver.holds(tracked)
    assert tracked.ending.cancel_reason is CancelReason.DEADLINE
    check_invariants(driver)
    driver.step()
    assert all(choice.seq is None for choice in tracked.request.choices)
    run_the_others(driver, tracked)


@pytest.mark.parametrize("memory", AHEAD)
def test_one_that_has_ended_is_not_offered_to_the_step_ahead(
    make_driver: Callable[..., Driver], memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make_driver(parallel=2, **AHEAD[memory])
    tracked = preempted(driver)
    registry = driver.engine.registry
    take_back = registry.take_back

    def cancelled_before(requests: Iterable[Request]) -> list[Request]:
        if driver.engine.workload.steps.ahead:  # the next step has begun
            driver.engine.cancel(tracked.request)
        return take_back(requests)

    monkeypatch.setattr(registry, "take_back", cancelled_before)
    driver.step_until(lambda: tracked.ended)
    assert tracked.ending.cancel_reason is CancelReason.EXPLICIT
    run_the_others(driver, tracked)


def test_its_slot_is_free_for_who_waits_after_the_step(make_driver: Callable[..., Driver]) -> None:
    driver = make_driver(parallel=2)
    tracked = behind_a_prompt(driver)
    waits = driver.submit(SHORT)
    driver.engine.cancel(tracked.request)
    assert waits.request.status is RequestStatus.WAITING
    driver.step()
    assert waits.request.status is RequestStatus.PREFILL
    driver.run_to_the_end()


def test_a_newer_request_of_its_key_ends_it_while_the_step_runs(driver: Driver) -> None:
    driver.submit(LONG, max_tokens=2)
    older = admitted(driver, SHORT * 2, supersede="key")
    newer = driver.submit(SHORT, supersede="key")
    assert older.ending.cancel_reason is CancelReason.SUPERSEDED
    driver.run_to_the_end()
    assert complete(newer)


def test_a_request_in_the_step_ends_with_the_step(driver: Driver) -> None:
    driver.submit(SHORT, max_tokens=20)
    tracked = driver.submit(SHORT[::-1], max_tokens=20)
    driver.step_until(lambda: driver.holds(tracked) and len(driver.gate.held().items) == 2)  # type: ignore[union-attr]
    driver.gate.move_on(0.99)
    driver.engine.cancel(tracked.request)
    assert not tracked.ended, "something is being computed for it"
    driver.step()
    assert tracked.ended
    driver.run_to_the_end()


def test_each_ends_once_if_the_engine_dies_in_the_step(driver: Driver) -> None:
    computed = driver.submit(LONG, max_tokens=2)
    beside = admitted(driver, SHORT * 2)
    driver.engine.cancel(beside.request)

    def die(_: StepRecord) -> None:
        raise MemoryError

    driver.watcher.on_step_done = die
    driver.dead = True
    driver.gate.let_through()
    assert computed.ending.error is not None
    assert beside.ending.cancel_reason is CancelReason.EXPLICIT
    assert computed.sink.ending()
    assert beside.sink.ending()
