"""How many threads a step has beside other busy programs: from readings of cores' times, with no clock and no load."""

import itertools

import pytest

from pyllmcancel._native import ThreadPolicy, idle_ticks, n_runnable
from pyllmcancel.config import EngineConfig, default_threads
from pyllmcancel.engine.engine import Engine
from tests.native.conftest import World

WINDOW = 100_000  # microseconds between two readings that count


class Cores:
    """Cores that are read as often as their times change."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.policy = ThreadPolicy(count)
        self.at = self.idle = self.own = 0
        self.policy.take(0, 0, 0)

    def pass_time(self, *, room: float, passed: int = WINDOW, n_crowded_out: int = 0) -> int:
        """Let time pass in which `room` of the cores was this process's, or idle; the next step's threads."""
        own = min(room, self.policy.n_threads)
        self.at += passed
        self.own += round(own * passed)
        self.idle += round((room - own) * passed)
        return self.policy.take(self.at, self.idle, self.own, n_crowded_out)

    def share_with(self, n_busy: int) -> int:
        """Let one window pass beside busy programs, all threads getting the same share of the cores."""
        n_threads = self.policy.n_threads
        share = min(1.0, self.count / (n_threads + n_busy))
        return self.pass_time(room=self.count - share * n_busy)

    def windows_until(self, n_threads: int, *, room: float) -> int:
        """How many windows it takes."""
        return next(n for n in itertools.count(1) if self.pass_time(room=room) == n_threads)


@pytest.mark.parametrize(
    ("cores", "busy", "threads"),
    [(2, 0, 2), (2, 1, 1), (2, 2, 1), (2, 4, 1), (2, 8, 1), (8, 0, 8), (8, 1, 7), (8, 3, 5), (8, 7, 2), (8, 16, 1)],
)
def test_busy_programs_get_the_cores_they_want_and_threads_the_others(cores: int, busy: int, threads: int) -> None:
    machine = Cores(cores)
    found = [machine.share_with(busy) for _ in range(40)]
    assert set(found[5:]) == {threads}, "it takes more than some steps, or never settles"


@pytest.mark.parametrize(
    "room", [4 / 3, 1.5, 0.0], ids=["gets its share of both cores", "shares one core with a thread so far", "has both"]
)
def test_a_busy_program_costs_a_thread_at_the_first_reading_and_one_is_left(room: float) -> None:
    assert Cores(2).pass_time(room=room) == 1


def test_a_program_that_takes_a_fifth_of_a_core_costs_none() -> None:
    machine = Cores(2)
    assert [machine.pass_time(room=1.8) for _ in range(20)] == [2] * 20


def test_cores_that_are_free_again_are_used_when_they_have_been_for_two_readings() -> None:
    machine = Cores(2)
    for _ in range(4):
        machine.share_with(1)
    assert [machine.pass_time(room=2.0), machine.pass_time(room=2.0)] == [1, 2]


def test_a_core_that_is_free_now_and_then_is_not_used() -> None:
    machine = Cores(2)
    machine.share_with(1)
    assert [machine.pass_time(room=room) for room in (2.0, 1.2, 2.0, 1.2, 2.0)] == [1] * 5


@pytest.mark.parametrize(("step", "windows"), [(1, 3), (5, 15), (20, 60), (50, 100)])
def test_the_longer_a_step_with_too_many_threads_took_the_later_there_are_more(step: int, windows: int) -> None:
    machine = Cores(2)
    machine.pass_time(room=1.0, passed=step * WINDOW)
    assert machine.windows_until(2, room=2.0) == windows


def test_programs_that_were_busy_during_a_long_rest_cost_no_more_time_than_it_takes_to_see_them_gone() -> None:
    machine = Cores(2)
    machine.policy.rest()
    assert machine.pass_time(room=1.0, passed=600 * WINDOW) == 1
    assert machine.windows_until(2, room=2.0) == 2


def test_readings_that_follow_each_other_closely_change_nothing() -> None:
    policy = ThreadPolicy(2)
    policy.take(0, 0, 0)
    assert policy.take(WINDOW - 1, 0, 0) == 2


@pytest.mark.parametrize(
    ("rests", "passed", "n_crowded_out", "threads"),
    [(True, 600, 3, 1), (True, 600, 1, 2), (False, 600, 3, 2), (True, 9, 3, 2)],
    ids=["who crowds the cores counts", "client and event loop may run", "without a rest", "after a short rest"],
)
def test_after_a_long_rest_the_moment_counts_at_once_and_without_one_for_nothing(
    rests: bool, passed: int, n_crowded_out: int, threads: int
) -> None:
    machine = Cores(2)
    if rests:
        machine.policy.rest()
    assert machine.pass_time(room=2.0, passed=passed * WINDOW, n_crowded_out=n_crowded_out) == threads


STAT = b"""cpu  100 2 30 4000 50 0 6 0 0 0
cpu0 10 1 3 400 5 0 1 0 0 0
cpu1 20 1 3 600 7 0 1 0 0 0
cpu11 30 1 3 800 9 0 1 0 0 0
intr 12345 0 1 2
"""


@pytest.mark.parametrize(("cpus", "ticks"), [([0], 405), ([1], 607), ([0, 11], 1214), ([0, 1, 11], 1821)])
def test_idle_times_are_those_of_the_cores_that_may_be_used(cpus: list[int], ticks: int) -> None:
    assert idle_ticks(STAT, cpus) == ticks


@pytest.mark.parametrize("text", [b"", b"cpu", b"cpu0 1 2 3 4 5\n", b"intr 1 2\n", STAT[:60], b"cpu0 a b c d\n" * 3])
def test_a_system_that_does_not_tell_of_all_cores_tells_nothing(text: bytes) -> None:
    assert idle_ticks(text, [0, 1]) is None


def test_a_system_in_which_no_core_was_ever_idle_tells_nothing() -> None:
    assert idle_ticks(b"cpu  0 0 0 0 0\ncpu0 0 0 0 0 0\ncpu1 0 0 0 0 0\n", [0, 1]) is None


@pytest.mark.parametrize(
    ("text", "count"), [(b"0.31 0.73 0.37 2/123 456\n", 2), (b"9.00 8.00 7.00 17/345 1\n", 17), (b"", 0), (b"1 2", 0)]
)
def test_threads_that_run_now_are_told_beside_the_load(text: bytes, count: int) -> None:
    assert n_runnable(text) == count


def test_answers_are_the_same_however_many_threads_each_step_has(real_world: World) -> None:
    prompt = [(13 * n + 7) % 900 for n in range(60)]
    most = default_threads()
    context = real_world.opened(prompt, n_threads=most, adapt_threads=True)
    assert real_world.run(context, 0, 20) == real_world.alone(prompt, 20)
    assert 1 <= context.n_threads <= most


def test_without_adapting_the_number_of_threads_is_fixed(real_world: World) -> None:
    context = real_world.opened([1, 2, 3], n_threads=2)
    assert context.step([(0, 3)]).n_threads == context.n_threads == 2


def test_an_engine_that_was_told_none_adapts_them_to_its_cores(slow_world: World) -> None:
    with Engine.load(EngineConfig(model=slow_world.path, ctx_size=256, parallel=1)) as engine:
        list(engine.generate([1, 2, 3], max_tokens=2))
        assert 1 <= engine.n_threads <= default_threads()
