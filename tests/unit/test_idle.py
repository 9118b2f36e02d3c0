"""Idle requests compute only while no others wait, prepare or compute; then they go on as if nothing had happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import QueueFullError
from pyllmcancel.events import FinishReason, RequestStatus
from pyllmcancel.requests.registry import PREPARING_SECONDS
from pyllmcancel.requests.request import IDLE
from tests.support.driver import MEMORIES, Driver, MakeDriver, Tracked

LONG = list(range(40, 80))


@pytest.fixture(params=MEMORIES.values(), ids=MEMORIES)
def memory(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = request.param
    return options


@pytest.mark.parametrize("owner", ["", "another"])
def test_a_step_of_idle_requests_is_aborted_by_an_arrival(
    make_driver: MakeDriver, memory: dict[str, Any], owner: str
) -> None:
    driver = make_driver(**memory)
    idle = driver.submit(LONG, max_tokens=8, priority=IDLE)
    driver.step(3)
    assert driver.holds(idle)
    before = len(driver.watcher.steps)
    other = driver.submit("another prompt", max_tokens=3, owner=owner)
    assert driver.watcher.steps[before].status == "aborted"
    assert driver.holds(other)
    assert not driver.holds(idle)
    assert idle.request.paused
    assert not idle.request.summary().slots
    driver.step_until(lambda: other.ended)
    assert [step.sequences[0].request for step in driver.watcher.steps[before + 1 :]].count(idle.request.id) == 0
    assert driver.holds(idle)
    driver.run_to_the_end()
    assert idle.sink.tokens() == idle.expected


def test_a_request_that_prepares_has_idle_ones_wait(make_driver: MakeDriver, memory: dict[str, Any]) -> None:
    driver = make_driver(**memory)
    idle = driver.submit(LONG, max_tokens=8, priority=IDLE)
    request = driver.engine.arrive(arrived_at=time.monotonic() + 1000.0)
    driver.settle()
    assert idle.request.paused
    assert driver.gate.held() is None
    driver.engine.arrivals.refuse(request)
    driver.settle()
    assert driver.holds(idle)
    for priority, age in ((IDLE, -1000.0), (0, PREPARING_SECONDS)):  # this body comes slowly
        request = driver.engine.arrive(priority=priority, arrived_at=time.monotonic() - age)
        driver.settle()
        assert driver.holds(idle)
        driver.engine.arrivals.refuse(request)
    driver.run_to_the_end()
    assert idle.sink.tokens() == idle.expected


def test_idle_requests_wait_while_others_do(make_driver: MakeDriver, memory: dict[str, Any]) -> None:
    driver = make_driver(**memory)
    first = driver.submit("one", max_tokens=4)
    idle = driver.submit("two", max_tokens=4, priority=IDLE, owner="another")
    driver.submit("three", max_tokens=8, priority=-1000)
    driver.step_until(lambda: first.ended)
    assert idle.request.status is RequestStatus.WAITING
    driver.run_to_the_end()
    assert idle.sink.tokens() == idle.expected
    assert driver.watcher.admitted[-1] == idle.request.id


def test_idle_requests_compute_beside_one_that_nobody_reads(make_driver: MakeDriver) -> None:
    driver = make_driver()
    unread = driver.submit("one", max_tokens=8)
    idle = driver.submit("two", max_tokens=4, priority=IDLE)
    driver.stop_reading(unread)
    driver.step()
    assert driver.holds(idle)
    driver.read_on(unread)
    assert driver.holds(unread)
    assert not driver.holds(idle)
    driver.run_to_the_end()
    assert (idle.sink.tokens(), unread.sink.tokens()) == (idle.expected, unread.expected)


def test_idle_requests_have_limits_of_their_own(make_driver: MakeDriver) -> None:
    driver = make_driver(parallel=1, max_queue=1)
    running = driver.submit("one", max_tokens=2)
    waiting = driver.submit("two", max_tokens=2, priority=IDLE)
    with pytest.raises(QueueFullError):
        driver.submit("three", priority=IDLE)
    other = driver.submit("four", max_tokens=2)
    driver.run_to_the_end()
    assert [name for name, _ in driver.watcher.endings] == [one.request.id for one in (running, other, waiting)]


def test_paused_idle_requests_are_cancelled_at_once(make_driver: MakeDriver, memory: dict[str, Any]) -> None:
    driver = make_driver(**memory)
    idle = driver.submit(LONG, max_tokens=8, priority=IDLE)
    driver.step(2)
    other = driver.submit("other", max_tokens=8)
    assert driver.holds(other)
    assert driver.engine.cancel(idle.request)
    assert idle.ending.finish_reason is FinishReason.CANCELLED
    assert driver.holds(other)
    driver.run_to_the_end()


@pytest.mark.parametrize("divided", [False, True])
def test_an_idle_answer_leaves_others_their_prefixes(make_driver: MakeDriver, divided: bool) -> None:
    driver = make_driver(parallel=3, spare_seqs=0, kv_unified=not divided)
    chat = driver.answered(LONG, max_tokens=2)
    for number in range(4):
        driver.answered([*LONG[:30], number, 9, 9], max_tokens=12, priority=IDLE)  # it has most of the chat's tokens
    again = driver.answered([*LONG, *chat.expected, 5], max_tokens=2)
    assert again.ending.usage.cached_tokens >= len(LONG)


def test_an_aborted_idle_step_makes_no_others_smaller(make_driver: MakeDriver) -> None:
    driver = make_driver(parallel=1)
    cost = driver.engine.workload.scheduler.cost
    cost.aborted(512, idle=True)
    assert cost.most(idle=True) == 256
    assert cost.most() > 1e9


def before(driver: Driver, name: str, act: Callable[[], object], *, after: bool = False) -> None:
    """Have `act` done once in the engine's thread, right before, or after, the next call of this name."""
    workload = driver.engine.workload
    called, done = getattr(workload, name), list[object]()

    def call(*arguments: Any, **options: Any) -> Any:
        found = called(*arguments, **options) if after else None
        if not done:
            done.append(True)
            act()
        return found if after else called(*arguments, **options)

    setattr(workload, name, call)


@pytest.mark.parametrize(
    ("name", "after"), [("flag", True), ("pause", False), ("pause", True), ("plan", True), ("give_way", True)]
)
@pytest.mark.parametrize("gpu", [False, True])
def test_others_may_come_at_any_point_of_a_turn(make_driver: MakeDriver, name: str, after: bool, gpu: bool) -> None:
    driver = make_driver(parallel=3, gpu=gpu)
    idle = driver.submit(LONG, max_tokens=8, priority=IDLE)
    driver.step(2)
    others: list[Tracked] = []
    before(driver, name, lambda: others.append(driver.submit("b", max_tokens=2, owner="o", settle=False)), after=after)
    driver.step()
    driver.run_to_the_end()
    steps = [({part.request for part in step.sequences}, step.status) for step in driver.watcher.steps]
    assert all(len(requests) == 1 for requests, _ in steps), "a step of both"
    assert ({others[0].request.id}, "aborted") not in steps
    assert (idle.sink.tokens(), others[0].sink.tokens()) == (idle.expected, others[0].expected)


def test_a_cancel_of_one_idle_request_aborts_no_other(make_driver: MakeDriver) -> None:
    driver = make_driver(memory_kind="hybrid", parallel=4)
    first = driver.submit([1, 2, 3], max_tokens=40, priority=IDLE)
    second = driver.submit([4, 5, 6], max_tokens=40, priority=IDLE)
    driver.step_until(lambda: driver.holds(first) and driver.holds(second))
    n_before = len(driver.watcher.steps)
    driver.engine.cancel(first.request)
    driver.step()
    assert driver.watcher.steps[n_before].status == "ok"


def test_a_copy_that_an_idle_request_uses_stays(make_driver: MakeDriver) -> None:
    driver = make_driver(parallel=2, spare_seqs=0)
    prompt = [*LONG, *LONG[:16]]
    chat = driver.answered(prompt, max_tokens=2)
    for first in (100, 150):
        driver.answered(range(first, first + 40), max_tokens=2)  # they displace the chat
    driver.answered([*prompt[:30], 9, 9, 9], max_tokens=12, priority=IDLE)
    again = driver.answered([*prompt, *chat.expected, 5], max_tokens=2)
    assert again.ending.usage.cached_tokens >= len(prompt)


def test_the_prefix_of_an_idle_request_that_gives_way_is_not_the_first_to_go(make_driver: MakeDriver) -> None:
    driver = make_driver(parallel=2, spare_seqs=0)
    driver.answered("a chat that is over", max_tokens=2)
    idle = driver.submit(LONG, max_tokens=8, priority=IDLE)
    driver.step_until(lambda: len(idle.sink.tokens()) > 2)
    driver.submit("another chat, which displaces the first one", max_tokens=1)
    n_before = len(driver.watcher.steps)
    driver.run_to_the_end()
    mine = [
        part for step in driver.watcher.steps[n_before:] for part in step.sequences if part.request == idle.request.id
    ]
    assert sum(part.n_tokens for part in mine) <= 8 + 1


@pytest.mark.parametrize("unread", [False, True])
def test_a_limit_that_keeps_others_waiting_keeps_no_idle_request_waiting(make_driver: MakeDriver, unread: bool) -> None:
    driver = make_driver(max_running=1, parallel=2)
    running = driver.submit("one", max_tokens=8)
    waiting = driver.submit("two", max_tokens=2)
    idle = driver.submit("three", max_tokens=4, priority=IDLE)
    if unread:
        driver.stop_reading(running)
        driver.step()
    assert driver.holds(idle) == unread
    driver.run_to_the_end()
    assert (idle.sink.tokens(), waiting.sink.tokens()) == (idle.expected, waiting.expected)


def test_an_idle_request_ends_when_the_drain_begins(make_driver: MakeDriver) -> None:
    driver = make_driver()
    idle = driver.submit(LONG, max_tokens=8, priority=IDLE)
    driver.engine.close(drain=1000.0)
    assert idle.ending.cancel_reason is CancelReason.SHUTDOWN
