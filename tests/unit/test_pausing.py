"""Requests that give their slots back: those whose readers leave too much unread, and idle ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import QueueFullError
from pyllmcancel.events import Delta, Ending, FinishReason, RequestStatus, Usage
from pyllmcancel.requests.registry import PREPARING_SECONDS
from pyllmcancel.requests.request import IDLE
from pyllmcancel.requests.token_stream import Bound, LoopSink
from tests.support.driver import MEMORIES, Driver, MakeDriver, Tracked, cancel_session, complete, in_thread
from tests.support.step_gate import TEST_LIMIT

PROMPT = b"read little by little"

pytestmark = pytest.mark.anyio


def paused(driver: Driver, **options: object) -> Tracked:
    tracked = driver.submit(**{"prompt": "this is not read", "max_tokens": 6} | options)
    driver.step_until(lambda: len(tracked.sink.tokens()) == 2)
    driver.stop_reading(tracked)
    driver.step()
    assert tracked.request.paused
    return tracked


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("n", [1, 2])
def test_it_goes_on_with_the_same_tokens(make_driver: MakeDriver, memory: str, n: int) -> None:
    driver = make_driver(**MEMORIES[memory])
    tracked = paused(driver, n=n)
    n_steps, n_left = len(driver.watcher.steps), 6 * n - tracked.request.usage().completion_tokens
    assert driver.asleep
    assert driver.context.open_seqs == []
    driver.read_on(tracked)
    driver.run_to_the_end()
    assert complete(tracked)
    computed = sum(record.n_tokens for record in driver.watcher.steps[n_steps:])
    if memory == "attention":
        assert computed == n_left, "the prefix was not kept"


def test_its_slot_is_anothers_meanwhile_and_it_comes_before_who_waits(make_driver: MakeDriver) -> None:
    driver = make_driver(parallel=1)
    tracked = paused(driver)
    running = driver.submit("runs", max_tokens=2)
    waiting = driver.submit("waits")
    assert driver.holds(running)
    driver.read_on(tracked)
    driver.step_until(lambda: running.ended)
    assert driver.holds(tracked)
    assert waiting.request.status is RequestStatus.WAITING
    driver.run_to_the_end()
    assert complete(waiting)


def test_it_is_still_running_and_says_that_it_is_paused(driver: Driver) -> None:
    tracked = paused(driver)
    summary = tracked.request.summary()
    assert (summary.status, summary.paused, summary.slots) == (RequestStatus.DECODE, True, ())
    assert driver.engine.counts().running == 1
    driver.cancel(tracked)
    (ended,) = driver.engine.registry.history()
    assert not ended.paused


WAYS: dict[str, tuple[Callable[[Driver, Tracked], object], CancelReason]] = {
    "cancel": (lambda driver, tracked: driver.engine.cancel(tracked.request), CancelReason.EXPLICIT),
    "newer": (lambda driver, _: driver.submit("newer", supersede="key", settle=False), CancelReason.SUPERSEDED),
    "deadline": (lambda driver, tracked: driver.expire(tracked), CancelReason.DEADLINE),
    "drop": (lambda driver, tracked: driver.engine.dropped(tracked.request), CancelReason.DISCONNECT),
    "session": (lambda driver, _: cancel_session(driver.engine, "session"), CancelReason.EXPLICIT),
}


@pytest.mark.parametrize("way", WAYS)
def test_cancels_reach_it_while_all_sleeps(driver: Driver, way: str) -> None:
    tracked = paused(driver, supersede="key", session="session")
    assert driver.asleep
    cancel, reason = WAYS[way]
    cancel(driver, tracked)
    assert (tracked.ending.cancel_reason, tracked.ending.phase) == (reason, RequestStatus.DECODE)
    driver.run_to_the_end()


def test_a_drain_waits_for_it_and_then_it_is_cancelled(driver: Driver) -> None:
    tracked = paused(driver)
    driver.engine.close(drain=0.05)
    assert tracked.ending.cancel_reason is CancelReason.SHUTDOWN


def test_a_drain_lets_it_finish_when_its_reader_reads_on(driver: Driver) -> None:
    tracked = paused(driver)
    driver.gate.open()
    driver.engine.registry.close()
    with in_thread(lambda: driver.engine.close(drain=TEST_LIMIT)):
        driver.read_on(tracked)
    assert complete(tracked)


def test_an_engine_whose_requests_are_all_paused_sleeps(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    tracked = paused(driver)
    turns: list[None] = []
    turn = driver.engine._loop.turn
    monkeypatch.setattr(driver.engine._loop, "turn", lambda: turns.append(turn()))
    for _ in range(3):
        driver.settle()  # wakes it
    assert len(turns) == 3
    driver.read_on(tracked)
    driver.run_to_the_end()


def test_time_that_its_reader_took_is_no_time_between_tokens(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    gaps: list[float] = []
    monkeypatch.setattr(driver.watcher, "next_token", lambda _, seconds: gaps.append(seconds))
    tracked = paused(driver, max_tokens=6)
    before = len(tracked.sink.tokens())
    driver.read_on(tracked)
    driver.run_to_the_end()
    assert len(gaps) == 6 - 2, "five gaps, one of which is a pause"
    assert before == 3


async def test_a_sink_is_full_from_its_bound_on_until_few_are_left_and_wakes_the_engine_once() -> None:
    woken: list[bool] = []
    sink = LoopSink(asyncio.get_running_loop(), Bound(4, 1, lambda: woken.append(sink.full)))
    for number in range(5):
        assert sink.full == (number >= 4)
        sink.put(Delta(0, "x"))
    for n_left in (4, 3, 2):
        await sink.get()
        assert sink.full, f"{n_left} are left"
    assert woken == []
    await sink.get()
    assert woken == [False], "the flag is down when the engine looks"
    await sink.get()
    sink.put(Ending(FinishReason.STOP, Usage(), RequestStatus.DECODE))
    await sink.get()
    assert woken == [False]


async def test_a_reader_in_an_event_loop_gets_everything_however_little_may_be_left_unread(driver: Driver) -> None:
    """With the smallest bound the request may pause after each token, and each that is read wakes the engine."""
    driver.gate.open()
    sink = LoopSink(asyncio.get_running_loop(), Bound(1, 0, driver.engine.registry.wake))
    driver.engine.submit([list(PROMPT)], generation_params(temperature=0.0, max_tokens=200), sink)
    tokens: list[int] = []
    while isinstance(event := await sink.get(), Delta):
        tokens += event.tokens
    assert event.finish_reason is FinishReason.LENGTH
    assert tokens == driver.model.greedy(PROMPT, 200)


# -- idle requests compute only while no others wait, prepare or compute -----------------------------------------------


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
    part: object = driver.context if name == "give_way" else driver.engine.workload
    called, done = getattr(part, name), list[object]()

    def call(*arguments: Any, **options: Any) -> Any:
        found = called(*arguments, **options) if after else None
        if not done:
            done.append(True)
            act()
        return found if after else called(*arguments, **options)

    setattr(part, name, call)


@pytest.mark.parametrize(
    ("name", "after"), [("new_flag", True), ("pause", False), ("pause", True), ("plan", True), ("give_way", True)]
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
