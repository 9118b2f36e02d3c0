"""Owners and priorities share slots, cells, steps and the prefix cache."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.engine.calls import generation_params
from pyllmcancel.engine.generation import Generation
from pyllmcancel.requests.observer import Observer
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.waiting_queue import WaitingQueue
from pyllmcancel.scheduling.scheduler import Scheduler
from pyllmcancel.scheduling.swap_space import Holder
from tests.support import fake_native
from tests.support.bare_requests import bare_request
from tests.support.driver import MEMORIES, Driver, MakeDriver, RecordingSink, Tracked
from tests.support.fake_native import Model
from tests.support.idle_prefixes import LONG, cache_of, context_with
from tests.support.invariants import check_invariants
from tests.support.marks import mostly_long
from tests.support.scheduling import Bench

PROMPT = list(range(100, 140))
KINDS = ("attention", "hybrid", "divided")


def bench_of(kind: str, **options: Any) -> Bench:
    if kind == "divided":
        return Bench(kv_unified=False, **options)
    return Bench(kind=kind, **options)


# -- slots ------------------------------------------------------------------------------------------------------------


def test_slots_are_shared_among_owners_and_nothing_is_preempted_again() -> None:
    bench = Bench(parallel=4)
    mine = [bench.add([n], f"a{n}", owner="a") for n in range(6)]
    others = [bench.add([n], f"b{n}", owner="b") for n in range(6)]
    assert [choice.seq is not None for choice in mine + others] == [True, True] + [False] * 4 + [True, True] + [
        False
    ] * 4
    assert bench.scheduler.n_preempted == 2
    for _ in range(5):
        bench.step()
        assert bench.scheduler.start_pending() == []
    assert bench.scheduler.n_preempted == 2


def test_a_higher_priority_takes_the_slot_of_the_newest_of_the_lowest_priority() -> None:
    bench = Bench(parallel=3)
    normal = bench.add([1], "normal")
    background = [bench.add([n], f"background{n}", priority=-1) for n in (2, 3)]
    interactive = bench.add([4], "interactive", priority=1)
    assert [choice.seq is not None for choice in (normal, *background, interactive)] == [True, True, False, True]
    assert bench.add([5], "another", priority=-1).seq is None
    bench.scheduler.release(interactive)
    assert bench.scheduler.start_pending() == [background[1]]


def test_a_choice_that_would_not_fit_all_the_same_preempts_none() -> None:
    bench = Bench(parallel=3, n_ctx=100)
    running = [bench.add([n] * 20, f"a{n}", owner="a") for n in range(2)]
    assert bench.add([9] * 80, "b", owner="b").seq is None
    assert [choice.seq is not None for choice in running] == [True, True]
    assert bench.scheduler.n_preempted == 0


def test_cells_are_shared_as_slots_are() -> None:
    bench = Bench(parallel=4, n_ctx=160)
    running = [bench.add([n] * 30, f"a{n}", owner="a") for n in range(3)]
    other = bench.add([9] * 40, "b", owner="b")
    assert [choice.seq is not None for choice in (*running, other)] == [True, True, False, True]


def test_when_cells_run_out_an_owner_with_one_choice_is_not_the_one_to_go() -> None:
    bench = Bench(parallel=3, n_ctx=96)
    first, second = bench.add([1] * 10, "a1", owner="a"), bench.add([2] * 10, "a2", owner="a")
    other = bench.add([3] * 10, "b", owner="b")
    while bench.scheduler.n_preempted == 0:
        bench.step()
    assert [choice.seq is None for choice in (first, second, other)] == [False, True, False]


def test_a_waiting_request_of_another_owner_is_not_overtaken_by_pending_choices() -> None:
    bench = Bench(parallel=2, n_ctx=100)
    leader = bench.add([1] * 40, "a", owner="a", n=2)
    bench.decode(leader)
    waiting = bare_request("b", prompt=[2] * 60, owner="b")
    assert bench.scheduler.choose([waiting]) is None, "there are no cells for it"
    assert bench.scheduler.start_pending() == [], "although the sibling would fit"
    assert bench.scheduler.start_pending() == leader.siblings, "nothing waits any more"


def test_pending_choices_come_before_waiting_ones_of_their_priority() -> None:
    bench = Bench(parallel=1)
    running, _pending = bench.add([1], "running"), bench.add([2], "pending")
    bench.scheduler.release(running)
    assert bench.scheduler.choose([bare_request("waiting", prompt=[3])]) is None
    interactive = bare_request("interactive", prompt=[4], priority=1)
    assert bench.scheduler.choose([interactive]) is interactive


def test_another_owners_request_starts_before_the_second_prompt_of_a_request() -> None:
    bench = Bench(parallel=2)
    generation = Generation(bench.context, bench.config, fake_native)
    params = generation_params(temperature=0.0, max_tokens=4)
    two_prompts, other = generation.request(owner="a"), generation.request(owner="b")
    for request, prompts in ((two_prompts, [[1], [2]]), (other, [[3]])):
        generation.fill(request, prompts, params, RecordingSink())
        assert generation.scheduler.choose([request]) is request
        generation.start(request, Observer())
    assert generation.scheduler.active == [two_prompts.choices[0], other.choices[0]]
    assert generation.scheduler.n_preempted == 0


arrivals = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 12),
            "owner": st.sampled_from("abc"),
            "priority": st.sampled_from((-1, 0, 1, 40)),
            "prompt": st.sampled_from([3, 20, 45]),
            "max_tokens": st.sampled_from([1, 4, 20]),
            "n": st.integers(1, 3),
            "paused": st.none() | st.tuples(st.integers(0, 10), st.integers(0, 10)),
        }
    ),
    max_size=12,
)


class Traffic:
    """Requests that arrive, wait in a queue, start, pause, and end, around a scheduler."""

    def __init__(self, bench: Bench, plan: list[dict[str, Any]], *, max_running: int | None) -> None:
        self.bench = bench
        self.queue = WaitingQueue(100, max_running)
        self.turn = 0
        self.arriving: list[tuple[int, Request]] = []
        self.pauses: list[tuple[int, bool, Request]] = []
        self.running: list[Request] = []
        for number, one in enumerate(plan):
            origin = {"owner": one["owner"], "priority": one["priority"]}
            prompt = [number] * one["prompt"]
            request = bare_request(f"r{number}", prompt=prompt, max_tokens=one["max_tokens"], n=one["n"], **origin)
            self.arriving.append((one["at"], request))
            if one["paused"] is not None:
                begin, length = one["paused"]
                self.pauses += [(begin, True, request), (begin + length, False, request)]

    @property
    def scheduler(self) -> Scheduler:
        return self.bench.scheduler

    def take_turn(self) -> None:
        for at, request in self.arriving:
            if at == self.turn:
                self.queue.append(request)
        for at, begins, request in self.pauses:
            if at == self.turn:
                (self.scheduler.pause if begins else self.scheduler.resume)(request.choices)
        while (heads := self.queue.heads()) and (request := self.scheduler.choose(heads)) is not None:
            self.queue.take(request)
            self.running.append(request)
            self.scheduler.add(request)
            assert self.scheduler.start_pending(most=1) == request.choices[:1], "the one that was chosen starts"
        self.scheduler.start_pending()
        self.bench.step()
        self._end_complete()
        self.turn += 1

    def _end_complete(self) -> None:
        for choice in self.scheduler.active:
            if len(choice.generated) >= choice.max_tokens:
                self.scheduler.release(choice)
        for request in list(self.running):
            if all(len(choice.generated) >= choice.max_tokens for choice in request.choices):
                self.running.remove(request)
                self.queue.forget(request)


@pytest.mark.long
@pytest.mark.timeout(3600)  # for the thorough profile
@given(
    plan=arrivals,
    kind=st.sampled_from(KINDS),
    parallel=st.integers(1, 4),
    n_ctx=st.sampled_from([72, 110, 400]),
    max_running=st.sampled_from([None, 1, 2]),
)
def test_every_request_is_complete_in_the_end_and_preemption_ends(
    plan: list[dict[str, Any]], kind: str, parallel: int, n_ctx: int, max_running: int | None
) -> None:
    traffic = Traffic(bench_of(kind, parallel=parallel, n_ctx=n_ctx), plan, max_running=max_running)
    n_tokens = sum(one["prompt"] + one["n"] * one["max_tokens"] for one in plan)
    while traffic.turn <= 22 or len(traffic.queue) or traffic.running:
        traffic.take_turn()
        assert traffic.turn < 100 + 10 * n_tokens, "no progress"
    for _, request in traffic.arriving:
        for choice in request.choices:
            assert choice.generated == Model().greedy(choice.prompt, choice.max_tokens)


def flooded(driver: Driver, n_requests: int, n_steps: int) -> None:
    """Give one owner a number of requests, and compute a number of steps for them."""
    for number in range(n_requests):
        prompt = [number % 200, *range(number % 30, number % 30 + 40)]
        driver.submit(prompt, owner="flood", max_tokens=12 + number % 5, settle=False)
    driver.settle()
    driver.step(n_steps)


def steps_to_first_token(driver: Driver, tracked: Tracked) -> int:
    n_before = len(driver.watcher.steps)
    driver.step_until(lambda: tracked.request.first_token_at is not None)
    return len(driver.watcher.steps) - n_before


@pytest.mark.parametrize("memory", mostly_long(MEMORIES, "attention"))
@pytest.mark.parametrize("n_prompt", mostly_long([10, 100], 10))
def test_a_flood_of_one_owner_delays_anothers_first_token_by_two_steps_at_most(
    make_driver: MakeDriver, memory: str, n_prompt: int
) -> None:
    sizes = {"parallel": 4, "n_ctx": 2048, "max_queue": 500}
    prompt = [251] + [3] * (n_prompt - 1)
    for n_steps in (0, 2, 5, 17, 31):
        found = []
        for n_requests in (1, 500):
            driver = make_driver(**sizes, **MEMORIES[memory])
            # The one request of the flood is as far as it can be, and still runs.
            flooded(driver, n_requests, min(n_steps, 5) if n_requests == 1 else n_steps)
            tracked = driver.submit(prompt, owner="other", max_tokens=2)
            found.append(steps_to_first_token(driver, tracked))
            check_invariants(driver)
        alone, beside_the_flood = found
        assert beside_the_flood <= alone + 2


def test_the_same_flood_of_ones_own_is_waited_for(make_driver: MakeDriver) -> None:
    driver = make_driver(parallel=4, n_ctx=2048, max_queue=60)
    flooded(driver, 50, 5)
    assert steps_to_first_token(driver, driver.submit([251, 3], owner="flood")) > 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_is_reused_by_its_owner_only(kind: str) -> None:
    bench = bench_of(kind, parallel=2)
    first = bench.add(PROMPT, "a1", owner="a")
    bench.decode(first)
    beside = bench.add([*PROMPT, 9], "b1", owner="b")
    assert beside.n_cached == 0, "in cells, running"
    bench.decode(beside)
    for choice in (first, beside):
        bench.scheduler.release(choice)
    assert bench.add([*PROMPT, 9], "c", owner="c").n_cached == 0, "idle, or swapped out"
    assert (bench.add([*PROMPT, 9], "b2", owner="b").n_cached > 0) == (kind != "hybrid")


def test_not_one_token_of_another_owners_idle_prefix_is_reused() -> None:
    for n_bytes in (0, 1 << 20):
        cache = cache_of(context_with(LONG, n_seq_max=1), swap_bytes=n_bytes)
        found = cache.find([*LONG, 1], running=(), holder=Holder("b"))
        assert (found.n_shared, found.swapped) == (0, None)
        assert cache.take(found, running=(), holder=Holder("b")) == 0
