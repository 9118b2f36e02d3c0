"""Which idle sequence a new choice starts from."""

from __future__ import annotations

import pytest

from pyllmcancel.prefix_cache import SHARE_AT_LEAST, SWAP_AFTER, Place, PrefixCache
from pyllmcancel.sampling import SamplingParams
from pyllmcancel.swap_store import MOST_PREFIXES, SwapStore
from tests.support.fake_native import BYTES_PER_CELL, CancelFlag, Context, Model, Sampler, SwappedPrefix

LONG = list(range(60))
SOMEBODY = (7,)  # runs


def context_with(*contents: list[int], open_seqs: tuple[int, ...] = (), n_seq_max: int = 4) -> Context:
    """A context whose first sequences hold `contents`, idle but for `open_seqs`."""
    model = Model()
    context = Context(model, n_ctx=1024, n_seq_max=n_seq_max, n_batch=512, n_threads=1)
    for seq, tokens in enumerate(contents):
        if not tokens:
            continue
        context.open(seq, tokens, Sampler(model, SamplingParams(temperature=0.0)), CancelFlag())
        context.step([(seq, len(tokens))])
        if seq not in open_seqs:
            context.close(seq, keep=True)
    return context


def test_of_empty_sequences_the_first_is_taken() -> None:
    cache = PrefixCache(context_with())
    assert len(cache) == 4
    cache.take(Place(0), running=SOMEBODY)
    assert cache.find(LONG, running=()) == Place(1)
    cache.give_back(0)
    assert cache.find(LONG, running=()) == Place(0)


def test_with_none_empty_the_least_recently_used_is_taken() -> None:
    cache = PrefixCache(context_with(*([n] * 5 for n in range(4))))
    cache.take(Place(0), running=SOMEBODY)
    cache.give_back(0)
    assert cache.find(LONG, running=()) == Place(1)


def test_the_longest_prefix_wins() -> None:
    cache = PrefixCache(context_with(LONG[:10], LONG[:30], LONG[:20]))
    assert cache.find(LONG, running=()) == Place(1, None, 30)


def test_of_equal_prefixes_the_most_recently_used_wins() -> None:
    cache = PrefixCache(context_with(LONG[:20], LONG[:20]))
    cache.take(Place(0), running=SOMEBODY)
    cache.give_back(0)
    assert cache.find(LONG, running=()) == Place(0, None, 20)


def test_a_running_prefix_is_shared_not_taken() -> None:
    cache = PrefixCache(context_with(LONG, open_seqs=(0,)))
    cache.take(Place(0), running=SOMEBODY)
    assert cache.find([*LONG, 99], running=[0]) == Place(1, source=0, n_shared=60)


def test_a_short_running_prefix_is_not_worth_sharing() -> None:
    cache = PrefixCache(context_with(LONG[:SHARE_AT_LEAST], open_seqs=(0,)))
    cache.take(Place(0), running=SOMEBODY)
    assert cache.find(LONG, running=[0]) == Place(1)


def test_an_idle_sequence_that_remembers_much_more_is_not_spent_on_a_shorter_prefix() -> None:
    cache = PrefixCache(context_with(LONG))
    cache.take(Place(0), running=SOMEBODY)
    cache.give_back(0)
    prompt = [*LONG[:20], 200, 201]
    assert cache.find(prompt, running=()) == Place(1, source=0, n_shared=20)


def test_an_idle_sequence_is_taken_over_when_little_is_lost() -> None:
    cache = PrefixCache(context_with(LONG))
    assert cache.find([*LONG[:50], 200], running=()) == Place(0, None, 50)


def test_idle_prefixes_are_taken_over_when_no_sequence_is_empty() -> None:
    cache = PrefixCache(context_with(LONG, [1] * 10, n_seq_max=2))
    cache.take(Place(0), running=SOMEBODY)
    cache.give_back(0)
    assert cache.find([*LONG[:20], 200], running=()) == Place(0, None, 20)


def test_eviction_frees_the_least_recently_used_first_and_no_more_than_needed() -> None:
    context = context_with(LONG[:10], LONG[:20], LONG[:30])
    cache = PrefixCache(context)
    assert cache.n_cells == 60
    cache.evict(15)
    assert [context.n_committed(seq) for seq in range(3)] == [0, 0, 30]
    assert cache.n_cells == 30


def test_eviction_never_touches_a_running_sequence() -> None:
    context = context_with(LONG, LONG[:20], open_seqs=(0,))
    cache = PrefixCache(context)
    cache.take(Place(0, None, 1), running=SOMEBODY)
    cache.evict(1000)
    assert [context.n_committed(seq) for seq in range(2)] == [60, 0]


def test_evicting_nothing_changes_nothing() -> None:
    context = context_with(LONG)
    PrefixCache(context).evict(0)
    assert context.n_committed(0) == 60


def swapping(*contents: list[int], n_bytes: int = 1 << 20, open_seqs: tuple[int, ...] = ()) -> PrefixCache:
    """A cache that may swap, so much later that it has swapped out all it had."""
    cache = PrefixCache(context_with(*contents, open_seqs=open_seqs), swap_bytes=n_bytes)
    for seq in open_seqs:
        cache.take(Place(seq, None, 1), running=SOMEBODY)
    for _ in range(SWAP_AFTER + len(contents)):
        cache.tend(open_seqs)
    return cache


def test_a_prefix_that_nobody_has_wanted_for_a_while_leaves_the_cells_one_in_each_step() -> None:
    cache = PrefixCache(context_with(LONG[:20], LONG[20:50]), swap_bytes=1 << 20)
    held = []
    for _ in range(SWAP_AFTER + 2):
        cache.tend(())
        held.append(cache.n_cells)
    assert held == [50] * SWAP_AFTER + [30, 0]
    assert cache.swapped_bytes == 50 * BYTES_PER_CELL


def test_whoever_was_idle_for_a_moment_only_keeps_its_cells() -> None:
    context = context_with(LONG, open_seqs=(0,))
    cache = PrefixCache(context, swap_bytes=1 << 20)
    cache.take(Place(0, None, 1), running=SOMEBODY)
    for _ in range(2 * SWAP_AFTER):
        cache.tend(())
    context.close(0, keep=True)
    cache.give_back(0)
    cache.tend(())
    assert cache.n_cells == 60


def test_a_swapped_prefix_is_found_and_put_back() -> None:
    cache = swapping(LONG, LONG[::-1])
    place = cache.find([*LONG, 99], running=())
    assert (place.n_shared, place.swapped is not None) == (60, True)
    cache.take(place, running=SOMEBODY)
    assert cache._context.tokens(place.seq) == LONG
    assert cache.swapped_bytes == 60 * BYTES_PER_CELL, "the other one's"


def test_of_a_swapped_prefix_whose_beginning_is_wanted_the_rest_is_not_lost() -> None:
    cache = swapping(LONG)
    cache.take(cache.find([*LONG[:20], 200, 201], running=()), running=SOMEBODY)
    assert cache.find([*LONG, 99], running=()).swapped is not None


def test_what_is_in_cells_is_preferred_to_what_is_hardly_longer() -> None:
    cache = swapping(LONG[: SHARE_AT_LEAST - 1])
    assert cache.find(LONG, running=()).swapped is None


def test_swapped_prefixes_keep_to_their_limit_and_the_least_recently_used_go() -> None:
    cache = swapping(LONG[:30], LONG[30:], n_bytes=45 * BYTES_PER_CELL)
    assert cache.swapped_bytes == 30 * BYTES_PER_CELL
    assert cache.find([*LONG[:30], 99], running=()).swapped is None
    assert cache.find([*LONG[30:], 99], running=()).swapped is not None


def test_a_prefix_larger_than_the_limit_stays_in_its_cells_and_pushes_nobody_out() -> None:
    cache = swapping(LONG[:30], LONG, n_bytes=45 * BYTES_PER_CELL)
    assert (cache.n_cells, cache.swapped_bytes) == (60, 30 * BYTES_PER_CELL)
    cache.evict(1)
    assert (cache.n_cells, cache.swapped_bytes) == (0, 30 * BYTES_PER_CELL)


def test_a_prefix_too_short_to_be_worth_a_copy_stays_in_its_cells() -> None:
    assert swapping(LONG[:SHARE_AT_LEAST]).n_cells == SHARE_AT_LEAST


def test_cells_that_somebody_who_runs_needs_too_are_not_copied() -> None:
    context = context_with([*LONG, 99], open_seqs=(0,))
    context.share_prefix(0, 1, 60, max_bytes=1 << 20)
    cache = PrefixCache(context, swap_bytes=1 << 20)
    cache.take(Place(0, None, 1), running=SOMEBODY)
    for _ in range(3 * SWAP_AFTER):
        cache.tend([0])
    assert (cache.n_cells, cache.swapped_bytes) == (60, 0)


def test_what_is_remembered_already_is_not_copied_again() -> None:
    cache = swapping(LONG)
    cache.take(cache.find([*LONG[:20], 200, 201], running=()), running=SOMEBODY)
    context = cache._context
    context.open(0, LONG[:30], Sampler(context.model, SamplingParams(temperature=0.0)), CancelFlag())
    context.close(0, keep=True)
    cache.give_back(0)
    for _ in range(SWAP_AFTER + 1):
        cache.tend(())
    assert (cache.n_cells, cache.swapped_bytes) == (0, 60 * BYTES_PER_CELL)


def test_of_equal_swapped_prefixes_the_shortest_is_put_back() -> None:
    cache = swapping([*LONG, *range(200, 250)], [*LONG, 99], [*LONG, *range(150, 200)])
    place = cache.find([*LONG, 255, 254], running=())
    assert place.swapped is not None
    assert (place.n_shared, place.swapped.n_tokens) == (60, 61)


def test_a_swapped_prefix_that_would_not_fit_beside_those_who_run_is_not_put_back() -> None:
    context = context_with([*LONG, *range(60, 120)], [*range(100, 220)], open_seqs=(1,))
    cache = PrefixCache(context, swap_bytes=1 << 20)
    cache.take(Place(1, None, 1), running=SOMEBODY)
    cache.evict(1)
    context.n_ctx = 239
    assert cache.find([*LONG, 255], running=[1]).swapped is None
    context.n_ctx = 240
    assert cache.find([*LONG, 255], running=[1]).swapped is not None


def test_only_so_many_swapped_prefixes_are_remembered() -> None:
    context = context_with()
    store = SwapStore(context, 1 << 30)
    for n in range(MOST_PREFIXES + 3):
        store.add(SwappedPrefix([n, *LONG]))
    assert store.find([2, *LONG, 1], 512) == (None, 0)
    assert store.find([3, *LONG, 1], 512)[1] == 61
    assert store.n_bytes == MOST_PREFIXES * 61 * BYTES_PER_CELL


def test_the_beginning_of_what_is_swapped_out_is_not_kept_twice() -> None:
    assert swapping(LONG[:30], LONG).swapped_bytes == 60 * BYTES_PER_CELL


def test_what_makes_room_is_swapped_out_too() -> None:
    cache = PrefixCache(context_with(LONG), swap_bytes=1 << 20)
    cache.evict(1)
    assert cache.n_cells == 0
    assert cache.find([*LONG, 99], running=()).swapped is not None


def test_a_swapped_prefix_makes_itself_room_among_the_idle() -> None:
    context = context_with(LONG, [*range(60, 180)], [*range(70, 190)], [*range(80, 200)])
    cache = PrefixCache(context, swap_bytes=1 << 20)
    cache.evict(1)
    context.n_ctx = context.n_cells_used + len(LONG) - 1
    cache.take(cache.find([*LONG, 99], running=()), running=SOMEBODY)
    assert context.tokens(0) == LONG
    assert context.n_cells_used <= context.n_ctx
    assert cache.swapped_bytes == 120 * BYTES_PER_CELL, "one of the others"


def test_memories_that_cannot_be_copied_are_left_alone() -> None:
    context = Context(Model("recurrent"), n_ctx=512, n_seq_max=2, n_batch=128, n_threads=1)
    cache = PrefixCache(context, swap_bytes=1 << 20)
    context.open(0, LONG, Sampler(context.model, SamplingParams(temperature=0.0)), CancelFlag())
    context.step([(0, 60)])
    context.close(0, keep=True)
    for _ in range(2 * SWAP_AFTER):
        cache.tend(())
    assert cache.n_cells == 60


def test_what_is_found_to_be_remembered_already_was_used_just_now() -> None:
    store = SwapStore(context_with(), 130 * BYTES_PER_CELL)
    for first in (1, 2):
        store.add(SwappedPrefix([first, *LONG]))
    assert store.touch([1, *LONG[:40]])
    assert not store.touch([3, *LONG[:40]])
    store.add(SwappedPrefix([3, *LONG]))
    assert [store.find([first, *LONG, 0], 512)[1] for first in (1, 2, 3)] == [61, 0, 61]


def test_of_several_that_make_room_at_once_only_the_last_is_copied() -> None:
    cache = PrefixCache(context_with(LONG, LONG[::-1], [7, *LONG]), swap_bytes=1 << 20)
    cache.evict(500)
    assert (cache.n_cells, cache.swapped_bytes) == (0, 61 * BYTES_PER_CELL)


def test_a_sequence_that_is_given_a_prefix_does_not_lose_its_own() -> None:
    contents = [[n, *LONG] for n in range(4)]
    cache = PrefixCache(context_with(*contents), swap_bytes=1 << 20)
    cache.evict(1)
    cache.take(Place(0), running=SOMEBODY)
    cache.give_back(0)
    context = cache._context
    context.open(0, [9, *LONG], Sampler(context.model, SamplingParams(temperature=0.0)), CancelFlag())
    context.step([(0, 61)])
    context.close(0, keep=True)
    cache.take(cache.find([*contents[0], 99], running=()), running=SOMEBODY)
    assert context.tokens(1) == contents[0]
    assert cache.find([*contents[1], 99], running=()).swapped is not None


def test_while_nobody_comes_each_idle_prefix_is_copied_once_and_stays_in_its_cells() -> None:
    cache = PrefixCache(context_with(LONG, LONG[::-1], LONG[:SHARE_AT_LEAST]), swap_bytes=1 << 20)
    assert [cache.make_ready() for _ in range(3)] == [True, True, False]
    assert (cache.n_cells, cache.swapped_bytes) == (120 + SHARE_AT_LEAST, 120 * BYTES_PER_CELL)
    assert cache.find([*LONG, 99], running=()) == Place(0, None, 60), "whoever comes back finds the cells"


def test_what_was_copied_while_nobody_came_leaves_the_cells_without_another_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = context_with(LONG, LONG[::-1])
    cache = PrefixCache(context, swap_bytes=1 << 20)
    while cache.make_ready():
        pass
    monkeypatch.setattr(context, "copy_out", lambda *_, **__: pytest.fail("somebody waits for this copy"))
    for _ in range(SWAP_AFTER + 2):
        cache.tend(())
    assert (cache.n_cells, cache.swapped_bytes) == (0, 120 * BYTES_PER_CELL)


def test_copying_while_nobody_comes_ends_where_not_all_may_be_kept() -> None:
    cache = PrefixCache(context_with(LONG, LONG[::-1], [7, *LONG]), swap_bytes=70 * BYTES_PER_CELL)
    assert [cache.make_ready() for _ in range(4)] == [True, True, True, False]
    assert cache.swapped_bytes == 61 * BYTES_PER_CELL, "the last one's"
    cache.take(Place(0, None, len(LONG)), running=())
    cache.give_back(0)
    assert cache.make_ready(), "it may hold something else now"


def divided(*contents: list[int], n_seq_max: int = 4, n_bytes: int = 1 << 20) -> PrefixCache:
    """A cache of a context whose cells are divided, and whose first sequences are idle and hold `contents`."""
    context = context_with(*contents, n_seq_max=n_seq_max)
    context.kv_unified = False
    return PrefixCache(context, swap_bytes=n_bytes)


def test_of_divided_cells_an_empty_place_spares_the_newcomer_a_copy() -> None:
    cache = divided(LONG, LONG[::-1])
    cache.take(cache.find([7, 8, 9], running=()), running=())
    assert (cache.n_cells, cache.swapped_bytes) == (120, 0)


def test_of_divided_cells_with_none_empty_the_least_recently_used_are_swapped_out() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=2)
    cache.take(Place(0, None, 1), running=SOMEBODY)
    cache.give_back(0)
    place = cache.find([7, 8, 9], running=())
    assert place == Place(1)
    cache.take(place, running=SOMEBODY)
    cache.give_back(1)
    assert cache.find([*LONG[::-1], 99], running=()).swapped is not None


def test_of_divided_cells_neighbours_of_those_who_run_are_taken_empty_ones_first() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=6)
    cache.take(Place(2), running=SOMEBODY)
    assert cache.find([7, 8, 9], running=[2]) == Place(3)
    cache.take(Place(4), running=SOMEBODY)
    assert cache.find([7, 8, 9], running=[2, 4]) == Place(3)
    cache.take(Place(3), running=SOMEBODY)
    cache.take(Place(5), running=SOMEBODY)
    assert cache.find([7, 8, 9], running=[2, 3, 4, 5]) == Place(1), "though 0 was used less recently"


def test_of_divided_cells_nothing_is_lost_that_is_too_large_to_copy() -> None:
    cache = divided([9] * 120, LONG, LONG[::-1], [8] * 120, n_bytes=100 * BYTES_PER_CELL)
    assert cache.find([7, 8, 9], running=()) == Place(1)
    cache.take(Place(2), running=())
    assert cache.find([7, 8, 9], running=[2]) == Place(1), "3 is as near"
    cache.take(Place(1), running=[2])
    assert cache.find([7, 8, 9], running=[1, 2]) == Place(0), "there is no other; it was used less recently than 3"


def test_of_divided_cells_with_nothing_to_be_remembered_the_least_recently_used_is_lost() -> None:
    cache = divided(LONG, LONG[::-1], [9] * 60, n_seq_max=3, n_bytes=0)
    for seq in (0, 1):
        cache.take(Place(seq, None, 1), running=())
        cache.give_back(seq)
    cache.take(Place(0, None, 1), running=())
    assert cache.find([7, 8, 9], running=[0]) == Place(2), "though 1 is next to the one who runs"


def test_of_divided_cells_without_swapping_nothing_is_lost_as_long_as_another_is_empty() -> None:
    cache = divided([9] * 60, LONG, n_seq_max=3, n_bytes=0)
    cache.take(Place(0, None, 1), running=())
    assert cache.find([7, 8, 9], running=[0]) == Place(2)


def test_of_divided_cells_nothing_is_copied_while_anybody_computes() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=3)
    cache.take(Place(2), running=())
    for _ in range(3 * SWAP_AFTER):
        cache.tend([2])
    assert (cache.n_cells, cache.swapped_bytes) == (120, 0)


def test_while_nobody_comes_the_least_recently_used_place_is_made_ready() -> None:
    cache = divided(LONG, LONG[::-1], n_seq_max=2)
    assert cache.make_ready()
    assert not cache.make_ready()
    assert (cache.n_cells, cache.swapped_bytes) == (120, 60 * BYTES_PER_CELL)
    assert cache.find([*LONG, 99], running=()) == Place(0, None, 60), "whoever comes back finds the cells"
    cache.take(cache.find([7, 8, 9], running=()), running=())
    assert (cache.n_cells, cache.swapped_bytes) == (60, 60 * BYTES_PER_CELL)
    assert cache.find([*LONG, 99], running=()).swapped is not None


def test_nothing_is_made_ready_where_a_place_is_empty_or_that_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not divided(LONG).make_ready()
    assert not divided(LONG, LONG[::-1], n_seq_max=2, n_bytes=0).make_ready()
    monkeypatch.setattr("pyllmcancel.prefix_cache.SWAP_AT_MOST", 1000)
    assert not divided(LONG, LONG[::-1], n_seq_max=2).make_ready(), "whoever came would wait long"


def test_of_divided_cells_an_idle_prefix_is_not_copied_for_its_beginning_nor_given_up_for_it() -> None:
    long = [*LONG, *range(60, 220)]
    for cache in (divided(long), divided(long, n_seq_max=1)):
        assert cache.find([*LONG[:20], 255], running=()).n_shared == 0
    assert divided(long).find([*LONG[:40], 255], running=()) == Place(1, 0, 40)


def test_an_idle_prefix_that_is_too_long_to_copy_does_not_hide_others() -> None:
    long, short = [*LONG, *range(60, 250)], [*LONG[:20], 254, 253]
    prompt = [*LONG[:20], 255]
    cache = divided(short, long)
    assert cache.find(prompt, running=()) == Place(0, None, 20)
    cache.take(Place(0, None, 20), running=())
    assert cache.find(prompt, running=[0]) == Place(1, 0, 20), "the one who runs has it too"


def test_of_a_long_swapped_prefix_a_few_tokens_are_not_worth_the_copy() -> None:
    cache = divided([*LONG, *range(60, 220)], n_seq_max=2)
    cache.take(Place(0), running=())
    assert cache.find([*LONG[:20], 255], running=[0]).swapped is None
    assert cache.find([*LONG[:40], 255], running=[0]).swapped is not None


def test_of_divided_cells_whoever_comes_back_computes_beside_those_who_run() -> None:
    cache = divided([9] * 60, LONG[::-1], [8] * 60, LONG)
    cache.take(Place(0, None, 60), running=())
    place = cache.find([*LONG, 255], running=[0])
    assert place == Place(1, 3, 60)
    cache.take(place, running=[0])
    assert cache._context.tokens(1) == LONG
    assert cache.find([*LONG[::-1], 255], running=[0, 1]).swapped is not None
    assert cache.find([*LONG, 255], running=[2]) == Place(3, None, 60), "is there already"


def test_of_divided_cells_nobody_is_moved_at_the_cost_of_what_another_would_lose() -> None:
    cache = divided([9] * 60, LONG[::-1], [8] * 60, LONG, n_bytes=0)
    for seq in (0, 2, 3):
        cache.take(Place(seq, None, 1), running=())
        cache.give_back(seq)
    cache.take(Place(0, None, 60), running=())
    assert cache.find([*LONG, 255], running=[0]) == Place(3, None, 60)


def test_of_divided_cells_that_cannot_be_copied_nothing_is_shared_or_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Context, "can_swap", False)
    cache = divided([9] * 60, [], [], LONG)
    cache.take(Place(0, None, 60), running=())
    assert cache.find([*LONG, 255], running=[0]) == Place(3, None, 60)
    assert cache.find([*LONG[:20], 255], running=[0]) == Place(1)
    assert cache.find([9] * 61, running=[0]) == Place(1)


def test_what_is_too_large_to_copy_is_remembered_only_if_nobody_else_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyllmcancel.prefix_cache.SWAP_AT_MOST", 1000)
    for running in ((), SOMEBODY):
        cache = PrefixCache(context_with(LONG, n_seq_max=1), swap_bytes=1 << 20)
        cache.take(Place(0), running)
        assert bool(cache.swapped_bytes) == (not running)


def test_a_few_tokens_in_common_do_not_cost_an_idle_prefix() -> None:
    context = context_with(LONG)
    cache = PrefixCache(context)
    assert cache.find([*LONG[:4], 200, 201], running=()) == Place(1)
    assert cache.find([*LONG[:40], 200, 201], running=()) == Place(0, None, 40)


def test_of_divided_cells_a_long_neighbour_is_not_copied_for_its_beginning() -> None:
    context = context_with([*LONG, *range(60, 220)], open_seqs=(0,))
    context.kv_unified = False
    cache = PrefixCache(context)
    cache.take(Place(0, None, 1), running=SOMEBODY)
    assert cache.find([*LONG[:20], 255], running=[0]) == Place(1)
    assert cache.find([*LONG, 255], running=[0]) == Place(1, 0, 60)
