"""Running sequences stay neighbours where each has cells of its own: the rule, and choices that are moved by it."""

import random

import pytest

from pyllmcancel.config import EngineConfig
from pyllmcancel.requests.request import Choice
from pyllmcancel.scheduling.neighbours import Move, best_move, runs_of
from pyllmcancel.scheduling.prefix_cache import SWAP_AFTER_STEPS, PrefixCache, PrefixMatch
from pyllmcancel.scheduling.scheduler import Scheduler
from pyllmcancel.scheduling.swap_space import Holder
from tests.support.driver import MakeDriver
from tests.support.fake_native import BYTES_PER_CELL, Context, Model
from tests.support.idle_prefixes import LONG, RUNNING, cache_of, context_with
from tests.support.scheduling import Bench


def best(running: str, *, fixed: tuple[int, ...] = (), lengths: dict[int, int] | None = None) -> Move | None:
    """The best move where running sequences are `x`, idle ones `.`, and idle ones that cannot be moved `-`."""
    places = {seq: (lengths or {}).get(seq, 1) for seq in range(len(running))}
    taken = [seq for seq, place in enumerate(running) if place == "x"]
    movable = {seq: places[seq] for seq in taken if seq not in fixed}
    return best_move(taken, movable, {seq: places[seq] for seq, place in enumerate(running) if place == "."})


def test_the_one_with_the_fewest_tokens_is_moved() -> None:
    assert best("x.x", lengths={0: 90, 2: 50}) == Move(2, 1)
    assert best("xx.xx", lengths={0: 9, 1: 9, 3: 9, 4: 8}) == Move(4, 2)
    assert best(".x.x", lengths={0: 5, 1: 5, 2: 90, 3: 5}) == Move(3, 0), "2 holds more than both"


def test_one_that_cannot_be_moved_stays_and_others_come_to_it() -> None:
    assert best("x.x", fixed=(0,)) == Move(2, 1)
    assert best("x..x", fixed=(0, 3)) is None
    assert best("x-x") is None
    assert best("x-x.", fixed=(2,)) == Move(0, 3)


@pytest.mark.parametrize("seed", range(20))
def test_moves_lead_to_one_run_and_come_to_an_end(seed: int) -> None:
    chance = random.Random(seed)
    n_seqs = chance.randrange(2, 33)
    running = set(chance.sample(range(n_seqs), chance.randrange(1, n_seqs + 1)))
    for _ in range(2 * len(running)):
        idle = dict.fromkeys(set(range(n_seqs)) - running, 1)
        move = best_move(running, dict.fromkeys(running, 1), idle)
        if move is None:
            break
        running = (running - {move.seq}) | {move.target}
    assert len(runs_of(running)) == 1


def test_two_sequences_change_places_with_all_that_is_known_of_them() -> None:
    context = context_with(LONG[::-1], LONG, open_seqs=(1,), kv_unified=False)
    cache = cache_of(context)
    mine = Holder("mine")
    cache.take(PrefixMatch(1, None, 1), running=RUNNING, holder=Holder("other"))
    cache.take(PrefixMatch(0, None, 1), running=[1], holder=mine)
    cache.give_back(0)
    assert cache.move(1, 0, 1 << 20)
    assert (context.tokens(0), context.tokens(1)) == (LONG, LONG[::-1])
    assert cache.find([*LONG[::-1], 9], [0], mine) == PrefixMatch(1, None, 60)
    assert cache.find([*LONG[::-1], 9], [0], Holder("other")).n_shared == 0
    assert cache.find([*LONG, 9], [0], mine).n_shared == 0


@pytest.mark.parametrize("contents", [(LONG, [7] * 150), ([7] * 150, LONG)], ids=["the running one", "the idle one"])
def test_nothing_changes_if_one_of_them_is_too_large_to_copy(contents: tuple[list[int], list[int]]) -> None:
    idle, running = contents
    context = context_with(idle, running, open_seqs=(1,), kv_unified=False)
    cache = cache_of(context)
    cache.take(PrefixMatch(1, None, 1), running=RUNNING)
    assert not cache.move(1, 0, 100 * BYTES_PER_CELL)
    assert (context.tokens(0), context.tokens(1)[:-1], context.open_seqs) == (idle, running, [1])
    assert context.n_committed(1) == len(running)
    assert cache.find([*idle, 9], running=[1]).seq == 0


class Churn:
    """Clients that come and go in a scheduler with eight slots, each with a prompt and an answer of its own length."""

    def __init__(self, seed: int, *, gathers: bool) -> None:
        self.bench = Bench(parallel=8, n_ctx=128, kv_unified=False)
        self.bench.scheduler.gathers = gathers
        self.chance = random.Random(seed)
        self.left: dict[Choice, int] = {}  # the tokens that an answer still gets
        self.n_graphs: list[int] = []  # of each step of several sequences

    def run(self, n_steps: int) -> None:
        for number in range(n_steps):
            if len(self.left) < 8 and self.chance.random() < 0.08:
                prompt = [self.chance.randrange(256) for _ in range(self.chance.randrange(4, 40))]
                self.left[self.bench.add(prompt, str(number))] = self.chance.randrange(4, 80)
            self.bench.scheduler.gather()
            items = self.bench.step()
            if len(items) > 1:
                self.n_graphs.append(len(runs_of(seq for seq, _ in items)))
            for choice in [choice for choice, length in self.left.items() if len(choice.generated) >= length]:
                assert choice.generated == self.bench.context.model.greedy(choice.prompt, len(choice.generated))
                self.bench.scheduler.release(choice)
                del self.left[choice]
            assert self.bench.context.open_seqs == sorted(choice.seq for choice in self.left if choice.seq is not None)


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_come_and_go_stay_neighbours(seed: int) -> None:
    churns = {gathers: Churn(seed, gathers=gathers) for gathers in (False, True)}
    for churn in churns.values():
        churn.run(400)
    stay, move = churns[False].n_graphs, churns[True].n_graphs
    # Each move waits for a step or two with a gap, as its copy costs as much as one or two graphs.
    assert sum(move) - len(move) < 0.5 * (sum(stay) - len(stay))
    assert max(move) <= max(stay)
    assert churns[True].bench.scheduler.n_moved > 0


def beside_a_gap(**options: object) -> tuple[Bench, list[Choice]]:
    """Three choices that decode, in slots 0, 1 and 2, and the one in 1 has ended."""
    bench = Bench(parallel=4, kv_unified=False, **options)  # type: ignore[arg-type]
    choices = [bench.add([number] * 12, str(number)) for number in range(3)]
    for _ in range(6):
        bench.step()
    assert all(choice.generated for choice in choices)
    bench.scheduler.release(choices.pop(1))
    return bench, choices


def test_a_choice_is_moved_into_the_gap_and_goes_on() -> None:
    bench, (first, last) = beside_a_gap()
    assert bench.scheduler.gather() is None, "no step has cost two graphs yet"
    bench.step()
    assert bench.scheduler.debt.is_due
    assert bench.scheduler.gather() is not None
    assert abs((first.seq or 0) - (last.seq or 0)) == 1
    assert bench.scheduler.active == [first, last], "in the order of admission"
    bench.step()
    for choice in (first, last):
        assert choice.n_pending == 1
        assert choice.generated == bench.context.model.greedy(choice.prompt, len(choice.generated))
    assert not bench.scheduler.debt.is_due


def test_what_was_in_the_gap_is_found_where_it_was_put() -> None:
    bench, _ = beside_a_gap()
    bench.step()
    bench.scheduler.gather()
    assert bench.add([*[1] * 12, 200], "again").n_cached == 12


def test_a_newcomer_takes_the_gap_and_nothing_is_moved() -> None:
    bench, _ = beside_a_gap()
    bench.step()
    bench.add([9] * 8, "newcomer")
    assert bench.scheduler.gather() is None
    assert not bench.scheduler.debt.is_due


def test_a_choice_whose_prompt_is_not_computed_yet_stays() -> None:
    bench, (first, last) = beside_a_gap()
    bench.scheduler.release(first)
    prompt = bench.add(list(range(100)), "prompt")
    bench.scheduler.resync([])
    for _ in range(4):
        bench.step()
        assert bench.scheduler.gather() in (None, last)
    assert prompt.seq is not None


def test_suspects_of_a_failed_step_stay_where_they_are_known() -> None:
    bench, choices = beside_a_gap()
    bench.step()
    seqs = [choice.seq for choice in choices if choice.seq is not None]
    bench.scheduler.suspect(seqs)
    assert bench.scheduler.gather() is None
    assert [[seq for seq, _ in bench.step()] for _ in seqs] == [[seq] for seq in seqs]
    assert bench.scheduler.gather() is not None


def test_nothing_is_moved_where_that_gains_nothing_or_cannot_be_done() -> None:
    model = Model()
    sizes = {"n_ctx": 1024, "n_seq_max": 4, "n_batch": 16, "n_threads": 1}
    cells = ({}, {"kv_unified": False, "flash_attention": 0}, {"kv_unified": False})
    schedulers = [Scheduler(Context(model, **sizes, **options), EngineConfig(parallel=4)) for options in cells]
    assert [scheduler.gathers for scheduler in schedulers] == [False, False, True]


@pytest.mark.parametrize("steps_ahead", [False, True])
def test_an_engine_moves_a_request_and_says_where_it_is(make_driver: MakeDriver, steps_ahead: bool) -> None:
    driver = make_driver(parallel=3, kv_unified=False, steps_ahead=steps_ahead)
    first, gap, last = (driver.submit(f"request {number}", max_tokens=40, ignore_eos=True) for number in range(3))
    choices = [first.request.choices[0], last.request.choices[0]]
    driver.step_until(lambda: all(choice.generated for choice in choices))
    driver.cancel(gap)
    driver.step_until(lambda: driver.engine.workload.scheduler.n_moved > 0)
    assert [choice.slot for choice in choices] == [choice.seq for choice in choices]
    driver.run_to_the_end()


# -- idle prefixes where each sequence has cells of its own ------------------------------------------------------------


def divided(*contents: list[int], n_seq_max: int = 4, n_bytes: int = 1 << 20) -> PrefixCache:
    """A cache of a context whose cells are divided, and whose first sequences are idle and hold `contents`."""
    return cache_of(context_with(*contents, n_seq_max=n_seq_max, kv_unified=False), swap_bytes=n_bytes)


def test_an_empty_place_spares_the_newcomer_a_copy() -> None:
    cache = divided(LONG, LONG[::-1])
    cache.take(cache.find([7, 8, 9], running=()), running=())
    assert (cache.n_cells, cache.swapped_bytes) == (120, 0)


def test_with_none_empty_the_least_recently_used_are_swapped_out() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=2)
    cache.take(PrefixMatch(0, None, 1), running=RUNNING)
    cache.give_back(0)
    found = cache.find([7, 8, 9], running=())
    assert found == PrefixMatch(1)
    cache.take(found, running=RUNNING)
    cache.give_back(1)
    assert cache.find([*LONG[::-1], 99], running=()).swapped is not None


def test_neighbours_of_those_who_run_are_taken_empty_ones_first() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=6)
    cache.take(PrefixMatch(2), running=RUNNING)
    assert cache.find([7, 8, 9], running=[2]) == PrefixMatch(3)
    cache.take(PrefixMatch(4), running=RUNNING)
    assert cache.find([7, 8, 9], running=[2, 4]) == PrefixMatch(3)
    cache.take(PrefixMatch(3), running=RUNNING)
    cache.take(PrefixMatch(5), running=RUNNING)
    assert cache.find([7, 8, 9], running=[2, 3, 4, 5]) == PrefixMatch(1), "though 0 was used less recently"


def test_nothing_is_lost_that_is_too_large_to_copy() -> None:
    cache = divided([9] * 120, LONG, LONG[::-1], [8] * 120, n_bytes=100 * BYTES_PER_CELL)
    assert cache.find([7, 8, 9], running=()) == PrefixMatch(1)
    cache.take(PrefixMatch(2), running=())
    assert cache.find([7, 8, 9], running=[2]) == PrefixMatch(1), "3 is as near"
    cache.take(PrefixMatch(1), running=[2])
    assert cache.find([7, 8, 9], running=[1, 2]) == PrefixMatch(0), (
        "there is no other; it was used less recently than 3"
    )


def test_with_nothing_to_be_remembered_the_least_recently_used_is_lost() -> None:
    cache = divided(LONG, LONG[::-1], [9] * 60, n_seq_max=3, n_bytes=0)
    for seq in (0, 1):
        cache.take(PrefixMatch(seq, None, 1), running=())
        cache.give_back(seq)
    cache.take(PrefixMatch(0, None, 1), running=())
    assert cache.find([7, 8, 9], running=[0]) == PrefixMatch(2), "though 1 is next to the one who runs"


def test_nothing_is_copied_while_a_request_computes() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=3)
    cache.take(PrefixMatch(2), running=())
    for _ in range(3 * SWAP_AFTER_STEPS):
        cache.maintain([2])
    assert (cache.n_cells, cache.swapped_bytes) == (120, 0)


def test_while_idle_the_least_recently_used_slot_is_made_ready() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=2)
    assert cache.maintain_idle()
    assert not cache.maintain_idle()
    assert (cache.n_cells, cache.swapped_bytes) == (120, 60 * BYTES_PER_CELL)
    assert cache.find([*LONG, 99], running=()) == PrefixMatch(0, None, 60), "a request that comes back finds the cells"
    cache.take(cache.find([7, 8, 9], running=()), running=())
    assert (cache.n_cells, cache.swapped_bytes) == (60, 60 * BYTES_PER_CELL)
    assert cache.find([*LONG, 99], running=()).swapped is not None


def test_nothing_is_made_ready_where_a_place_is_empty_or_that_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not divided(LONG).maintain_idle()
    assert not divided(LONG, LONG[::-1], n_seq_max=2, n_bytes=0).maintain_idle()
    monkeypatch.setattr("pyllmcancel.scheduling.swap_space.MAX_COPIED_BYTES", 1000)
    assert not divided(LONG, LONG[::-1], n_seq_max=2).maintain_idle(), "a request that came would wait long"


def test_an_idle_prefix_is_not_copied_for_its_beginning_nor_given_up_for_it() -> None:
    long = [*LONG, *range(60, 220)]
    for cache in (divided(long), divided(long, n_seq_max=1)):
        assert cache.find([*LONG[:20], 255], running=()).n_shared == 0
    assert divided(long).find([*LONG[:40], 255], running=()) == PrefixMatch(1, 0, 40)


def test_an_idle_prefix_that_is_too_long_to_copy_does_not_hide_others() -> None:
    long, short = [*LONG, *range(60, 250)], [*LONG[:20], 254, 253]
    prompt = [*LONG[:20], 255]
    cache = divided(short, long)
    assert cache.find(prompt, running=()) == PrefixMatch(0, None, 20)
    cache.take(PrefixMatch(0, None, 20), running=())
    assert cache.find(prompt, running=[0]) == PrefixMatch(1, 0, 20), "the one who runs has it too"


def test_a_request_that_comes_back_computes_beside_the_running_ones() -> None:
    cache = divided([9] * 60, LONG[::-1], [8] * 60, LONG)
    cache.take(PrefixMatch(0, None, 60), running=())
    found = cache.find([*LONG, 255], running=[0])
    assert found == PrefixMatch(1, 3, 60)
    cache.take(found, running=[0])
    assert cache._context.tokens(1) == LONG
    assert cache.find([*LONG[::-1], 255], running=[0, 1]).swapped is not None
    assert cache.find([*LONG, 255], running=[2]) == PrefixMatch(3, None, 60), "is there already"


def test_where_nothing_can_be_copied_nothing_is_shared_or_moved() -> None:
    """Without flash attention."""
    cache = cache_of(context_with([9] * 60, [], [], LONG, kv_unified=False, flash_attention=0))
    cache.take(PrefixMatch(0, None, 60), running=())
    assert cache.find([*LONG, 255], running=[0]) == PrefixMatch(3, None, 60)
    assert cache.find([*LONG[:20], 255], running=[0]) == PrefixMatch(1)
    assert cache.find([9] * 61, running=[0]) == PrefixMatch(1)
