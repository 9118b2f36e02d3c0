"""Requests whose readers leave too much unread: their slots are given back until those read on."""

import asyncio
from collections.abc import Callable

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.events import Delta, Ending, FinishReason, RequestStatus, Usage
from pyllmcancel.requests.token_stream import Bound, LoopSink
from tests.support.driver import MEMORIES, Driver, MakeDriver, Tracked, complete, in_thread
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


def test_a_prompt_is_paused_too(driver: Driver) -> None:
    tracked = driver.submit("a prompt of several steps, as they are here", max_tokens=2)
    driver.stop_reading(tracked)
    driver.step()
    assert (tracked.request.paused, tracked.request.status) == (True, RequestStatus.PREFILL)
    driver.read_on(tracked)
    driver.run_to_the_end()
    assert complete(tracked)


WAYS: dict[str, tuple[Callable[[Driver, Tracked], object], CancelReason]] = {
    "cancel": (lambda driver, tracked: driver.engine.cancel(tracked.request), CancelReason.EXPLICIT),
    "newer": (lambda driver, _: driver.submit("newer", supersede="key", settle=False), CancelReason.SUPERSEDED),
    "deadline": (lambda driver, tracked: driver.expire(tracked), CancelReason.DEADLINE),
    "drop": (lambda driver, tracked: driver.engine.dropped(tracked.request), CancelReason.DISCONNECT),
    "session": (lambda driver, _: driver.engine.cancel_session("session"), CancelReason.EXPLICIT),
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


def test_who_waits_for_its_owners_limit_is_admitted_when_it_ends(make_driver: MakeDriver) -> None:
    driver = make_driver(max_running=1)
    tracked = paused(driver)
    waiting = driver.submit("waits")
    assert driver.asleep, "it may not run before the other one has ended"
    driver.cancel(tracked)
    assert driver.holds(waiting)
    driver.run_to_the_end()


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
