"""Idle prefixes: which one a new choice starts from, which go first, and what leaves the cells and comes back."""

from collections.abc import Iterable, Sequence

import pytest

from pyllmcancel.scheduling.prefix_cache import SWAP_AFTER_STEPS, PrefixCache, PrefixMatch
from pyllmcancel.scheduling.swap_space import MAX_PREFIXES, MIN_SHARED_TOKENS, Holder, SwapSpace
from tests.support.fake_native import BYTES_PER_CELL, Context, Model, SwappedPrefix
from tests.support.idle_prefixes import LONG, RUNNING, cache_of, compute, context_with


def used(cache: PrefixCache, seq: int, n_shared: int = 0, **holder: Holder) -> None:
    cache.take(PrefixMatch(seq, None, n_shared), running=RUNNING, **holder)
    cache.give_back(seq)


def maintained(cache: PrefixCache, n_steps: int, running: Sequence[int] = ()) -> None:
    for _ in range(n_steps):
        cache.maintain(running)


def test_of_empty_sequences_the_first_is_taken() -> None:
    cache = cache_of(context_with())
    cache.take(PrefixMatch(0), running=RUNNING)
    assert cache.find(LONG, running=()) == PrefixMatch(1)
    cache.give_back(0)
    assert cache.find(LONG, running=()) == PrefixMatch(0)


def test_with_none_empty_the_least_recently_used_is_taken_or_one_that_has_the_beginning() -> None:
    cache = cache_of(context_with(LONG, *([n] * 5 for n in (101, 102, 103))))
    used(cache, 0)
    assert cache.find([200, 201], running=()) == PrefixMatch(1)
    assert cache.find([*LONG[:20], 200], running=()) == PrefixMatch(0, None, 20)


# The contents of sequences, of which the first was used last; those that run; a prompt, and what it starts from.
FOUND = {
    "the longest wins": ((LONG[:10], LONG[:30], LONG[:20]), (), LONG, PrefixMatch(1, None, 30)),
    "of equal ones the most recently used wins": ((LONG[:20], LONG[:20]), (), LONG, PrefixMatch(0, None, 20)),
    "a running one is shared": ((LONG,), (0,), [*LONG, 99], PrefixMatch(1, source=0, n_shared=60)),
    "a short running one is not worth it": ((LONG[:MIN_SHARED_TOKENS],), (0,), LONG, PrefixMatch(1)),
    "one with much more is shared": ((LONG,), (), [*LONG[:20], 200, 201], PrefixMatch(1, source=0, n_shared=20)),
    "one that loses little is taken over": ((LONG,), (), [*LONG[:50], 200], PrefixMatch(0, None, 50)),
    "one that loses a third is taken over": ((LONG,), (), [*LONG[:40], 200, 201], PrefixMatch(0, None, 40)),
    "a few tokens in common cost none": ((LONG,), (), [*LONG[:4], 200, 201], PrefixMatch(1)),
}


@pytest.mark.parametrize(("contents", "running", "prompt", "found"), FOUND.values(), ids=FOUND)
def test_the_prefix_that_saves_most_is_found(
    contents: tuple[list[int], ...], running: tuple[int, ...], prompt: list[int], found: PrefixMatch
) -> None:
    cache = cache_of(context_with(*contents, open_seqs=running))
    cache.take(PrefixMatch(0), running=RUNNING)
    if not running:
        cache.give_back(0)
    assert cache.find(prompt, running=running) == found


def test_eviction_counts_the_cells_that_several_share_once() -> None:
    context = context_with(LONG, [], [9] * 20)
    context.share_prefix(0, 1, 40, max_bytes=0)
    cache = cache_of(context)
    cache.evict(21)
    assert [context.n_committed(seq) for seq in range(3)] == [0, 0, 20]
    assert cache.n_cells == 20


def test_evicting_many_asks_for_few_counts_of_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_with(*([n] * 4 for n in range(256)), n_seq_max=256)
    cache, n_calls, n_cells_of = cache_of(context), 0, context.n_cells_of

    def count(seqs: Iterable[int]) -> int:
        nonlocal n_calls
        n_calls += 1
        return n_cells_of(seqs)

    monkeypatch.setattr(context, "n_cells_of", count)
    cache.evict(1024)
    assert context.n_cells_used == 0
    assert n_calls < 32


ANN, BOB = Holder("ann"), Holder("bob")


def held_by(cache: PrefixCache, *holders: Holder) -> PrefixCache:
    """Sequence after sequence, these are whose the prefixes are."""
    for seq, holder in enumerate(holders):
        cache._holders[seq] = holder
    return cache


# The lengths of prefixes, the one that runs, whose they are, the cells that are needed, and the lengths that are left.
EVICTED = {
    "the least recently used first, no more than needed": ((10, 20, 30), None, (), 15, [0, 0, 30]),
    "no running one": ((60, 20), 0, (), 1000, [60, 0]),
    "those of the owner that holds the most first": ((30, 40, 40), None, (BOB, ANN, ANN), 60, [30, 0, 0]),
    "a session's before any within a share": ((30, 40), None, (BOB, Holder("ann", in_session=True)), 10, [30, 0]),
    "cells that an owner computes in count": ((30, 40, 20), 1, (BOB, ANN, ANN), 10, [30, 40, 0]),
}


@pytest.mark.parametrize(("lengths", "running", "holders", "n_cells", "left"), EVICTED.values(), ids=EVICTED)
def test_the_right_prefixes_are_evicted(
    lengths: tuple[int, ...], running: int | None, holders: tuple[Holder, ...], n_cells: int, left: list[int]
) -> None:
    open_seqs = () if running is None else (running,)
    context = context_with(*([n] * length for n, length in enumerate(lengths, 1)), open_seqs=open_seqs)
    cache = held_by(cache_of(context), *holders)
    for seq in open_seqs:
        cache.take(PrefixMatch(seq, None, 1), RUNNING, *holders[seq : seq + 1])
    cache.evict(n_cells)
    assert [context.n_committed(seq) for seq in range(len(lengths))] == left


@pytest.mark.parametrize("unified", [True, False])
def test_a_new_choice_takes_the_place_of_the_owner_that_holds_the_most(unified: bool) -> None:
    context = context_with([1] * 30, [2] * 40, [3] * 40, [4] * 40, kv_unified=unified)
    assert held_by(cache_of(context), BOB, ANN, ANN, ANN).find([9] * 20, (), ANN).seq == 1


def test_a_flood_of_one_owner_leaves_anothers_prefix() -> None:
    context = context_with([1] * 30)
    cache = held_by(cache_of(context), BOB)
    for number in range(20):
        found = cache.find([10 + number] * 100, (), ANN)
        cache.take(found, (), ANN)
        compute(context, found.seq, [10 + number] * 100)
        context.close(found.seq, keep=True)
        cache.give_back(found.seq)
    assert cache.find([*[1] * 30, 2], (), BOB).n_shared == 30


# -- prefixes that leave unified cells for plain memory, and come back -------------------------------------------------


def n_found(store: SwapSpace, *firsts: int) -> list[int]:
    """How many tokens of `LONG` behind each of these tokens are remembered."""
    return [store.find([first, *LONG, 0], 0, 512, Holder())[1] for first in firsts]


def swapping(*contents: list[int], n_bytes: int = 1 << 20, open_seqs: tuple[int, ...] = ()) -> PrefixCache:
    """A cache that may swap, so much later that it has swapped out all it had."""
    cache = cache_of(context_with(*contents, open_seqs=open_seqs), swap_bytes=n_bytes)
    for seq in open_seqs:
        cache.take(PrefixMatch(seq, None, 1), running=RUNNING)
    maintained(cache, SWAP_AFTER_STEPS + len(contents), open_seqs)
    return cache


def test_prefixes_idle_for_a_while_leave_the_cells_one_in_each_step() -> None:
    cache = cache_of(context_with(LONG[:20], LONG[20:50]), swap_bytes=1 << 20)
    held = []
    for _ in range(SWAP_AFTER_STEPS + 2):
        cache.maintain(())
        held.append(cache.n_cells)
    assert held == [50] * SWAP_AFTER_STEPS + [30, 0]
    assert cache.swapped_bytes == 50 * BYTES_PER_CELL


def test_a_prefix_idle_for_a_moment_only_keeps_its_cells() -> None:
    context = context_with(LONG, open_seqs=(0,))
    cache = cache_of(context, swap_bytes=1 << 20)
    cache.take(PrefixMatch(0, None, 1), running=RUNNING)
    maintained(cache, 2 * SWAP_AFTER_STEPS)
    context.close(0, keep=True)
    cache.give_back(0)
    cache.maintain(())
    assert cache.n_cells == 60


def test_a_swapped_prefix_is_found_and_put_back() -> None:
    cache = swapping(LONG, LONG[::-1])
    found = cache.find([*LONG, 99], running=())
    assert (found.n_shared, found.swapped is not None) == (60, True)
    cache.take(found, running=RUNNING)
    assert cache._context.tokens(found.seq) == LONG
    assert cache.swapped_bytes == 60 * BYTES_PER_CELL, "the other one's"


def test_of_a_swapped_prefix_whose_beginning_is_wanted_the_rest_is_not_lost() -> None:
    cache = swapping(LONG)
    cache.take(cache.find([*LONG[:20], 200, 201], running=()), running=RUNNING)
    assert cache.find([*LONG, 99], running=()).swapped is not None


def test_swapped_prefixes_keep_to_their_limit_and_the_least_recently_used_go() -> None:
    cache = swapping(LONG[:30], LONG[30:], n_bytes=45 * BYTES_PER_CELL)
    assert cache.swapped_bytes == 30 * BYTES_PER_CELL
    assert cache.find([*LONG[:30], 99], running=()).swapped is None
    assert cache.find([*LONG[30:], 99], running=()).swapped is not None


def test_a_prefix_larger_than_the_limit_stays_in_its_cells_and_pushes_none_out() -> None:
    cache = swapping(LONG[:30], LONG, n_bytes=45 * BYTES_PER_CELL)
    assert (cache.n_cells, cache.swapped_bytes) == (60, 30 * BYTES_PER_CELL)
    cache.evict(1)
    assert (cache.n_cells, cache.swapped_bytes) == (0, 30 * BYTES_PER_CELL)


def test_a_prefix_too_short_to_be_worth_a_copy_stays_in_its_cells() -> None:
    assert swapping(LONG[:MIN_SHARED_TOKENS]).n_cells == MIN_SHARED_TOKENS


def test_cells_that_a_running_request_holds_too_are_not_copied() -> None:
    context = context_with([*LONG, 99], open_seqs=(0,))
    context.share_prefix(0, 1, 60, max_bytes=1 << 20)
    cache = cache_of(context, swap_bytes=1 << 20)
    cache.take(PrefixMatch(0, None, 1), running=RUNNING)
    maintained(cache, 3 * SWAP_AFTER_STEPS, [0])
    assert (context.n_committed(1), cache.n_cells, cache.swapped_bytes) == (60, 0, 0), "they are not its own"


def test_a_swapped_prefix_that_would_not_fit_beside_who_runs_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_with([*LONG, *range(60, 120)], [*range(100, 220)], open_seqs=(1,))
    cache = cache_of(context, swap_bytes=1 << 20)
    cache.take(PrefixMatch(1, None, 1), running=RUNNING)
    cache.evict(1)
    monkeypatch.setattr(Context, "n_cells", 239)
    assert cache.find([*LONG, 255], running=[1]).swapped is None
    monkeypatch.setattr(Context, "n_cells", 240)
    assert cache.find([*LONG, 255], running=[1]).swapped is not None


def test_only_so_many_swapped_prefixes_are_remembered() -> None:
    store = SwapSpace(context_with(), 1 << 30)
    for n in range(MAX_PREFIXES + 3):
        store.add(SwappedPrefix([n, *LONG]), Holder())
    assert store.find([2, *LONG, 1], 0, 512, Holder()) == (None, 0)
    assert store.find([3, *LONG, 1], 0, 512, Holder())[1] == 61
    assert store.n_bytes == MAX_PREFIXES * 61 * BYTES_PER_CELL


def test_the_beginning_of_what_is_swapped_out_is_not_kept_twice() -> None:
    assert swapping(LONG[:30], LONG).swapped_bytes == 60 * BYTES_PER_CELL


def test_a_swapped_prefix_makes_itself_room_among_the_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_with(LONG, [*range(60, 180)], [*range(70, 190)], [*range(80, 200)])
    cache = cache_of(context, swap_bytes=1 << 20)
    cache.evict(1)
    monkeypatch.setattr(Context, "n_cells", context.n_cells_used + len(LONG) - 1)
    cache.take(cache.find([*LONG, 99], running=()), running=RUNNING)
    assert context.tokens(0) == LONG
    assert context.n_cells_used <= context.n_cells
    assert cache.swapped_bytes == 120 * BYTES_PER_CELL, "one of the others"


def test_memories_that_cannot_be_copied_are_left_alone() -> None:
    context = Context(Model("recurrent"), n_ctx=512, n_seq_max=2, n_batch=128, n_threads=1)
    cache = cache_of(context, swap_bytes=1 << 20)
    compute(context, 0, LONG)
    context.close(0, keep=True)
    maintained(cache, 2 * SWAP_AFTER_STEPS)
    assert cache.n_cells == 60


def test_a_sequence_that_is_given_a_prefix_does_not_lose_its_own() -> None:
    contents = [[n, *LONG] for n in range(4)]
    cache = cache_of(context_with(*contents), swap_bytes=1 << 20)
    cache.evict(1)
    used(cache, 0)
    context = cache._context
    compute(context, 0, [9, *LONG])
    context.close(0, keep=True)
    cache.take(cache.find([*contents[0], 99], running=()), running=RUNNING)
    assert context.tokens(1) == contents[0]
    assert cache.find([*contents[1], 99], running=()).swapped is not None


def test_while_idle_each_idle_prefix_is_copied_once_and_stays_in_its_cells() -> None:
    cache = cache_of(context_with(LONG, LONG[::-1], LONG[:MIN_SHARED_TOKENS]), swap_bytes=1 << 20)
    assert [cache.maintain_idle() for _ in range(3)] == [True, True, False]
    assert (cache.n_cells, cache.swapped_bytes) == (120 + MIN_SHARED_TOKENS, 120 * BYTES_PER_CELL)
    assert cache.find([*LONG, 99], running=()) == PrefixMatch(0, None, 60), "a request that comes back finds the cells"


def test_what_was_copied_while_idle_leaves_the_cells_without_another_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_with(LONG, LONG[::-1])
    cache = cache_of(context, swap_bytes=1 << 20)
    while cache.maintain_idle():
        pass
    monkeypatch.setattr(context, "copy_out", lambda *_, **__: pytest.fail("a request waits for this copy"))
    maintained(cache, SWAP_AFTER_STEPS + 2)
    assert (cache.n_cells, cache.swapped_bytes) == (0, 120 * BYTES_PER_CELL)


def test_copying_while_idle_ends_where_not_all_may_be_kept() -> None:
    cache = cache_of(context_with(LONG, LONG[::-1], [7, *LONG]), swap_bytes=70 * BYTES_PER_CELL)
    assert [cache.maintain_idle() for _ in range(4)] == [True, True, True, False]
    assert cache.swapped_bytes == 61 * BYTES_PER_CELL, "the last one's"
    used(cache, 0, len(LONG))
    assert cache.maintain_idle(), "it may hold something else now"


def test_what_is_too_large_to_copy_is_remembered_if_no_other_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.scheduling.swap_space.MAX_COPIED_BYTES", 1000)
    for running in ((), RUNNING):
        cache = cache_of(context_with(LONG, n_seq_max=1), swap_bytes=1 << 20)
        cache.take(PrefixMatch(0), running)
        assert bool(cache.swapped_bytes) == (not running)


def test_of_a_client_that_comes_back_again_and_again_there_is_one_copy() -> None:
    context = context_with()
    cache = cache_of(context, swap_bytes=1 << 20)
    for last in range(100, 105):
        prompt = [*LONG, last, last]
        found = cache.find(prompt, running=())
        cache.take(found, running=())
        assert cache.swapped_bytes == 0, "what it goes on from is in its cells"
        compute(context, found.seq, prompt)
        context.close(found.seq, keep=True)
        cache.give_back(found.seq)
        assert [cache.maintain_idle() for _ in range(2)] == [True, False]
        assert cache.swapped_bytes == len(prompt) * BYTES_PER_CELL


def test_a_prompt_that_several_choices_have_in_common_is_not_copied_ahead_for_each() -> None:
    cache = cache_of(context_with(*([*LONG, 100 + n] for n in range(4))), swap_bytes=1 << 20)
    assert [cache.maintain_idle() for _ in range(2)] == [True, False]
    assert cache.swapped_bytes == 61 * BYTES_PER_CELL


def test_a_prefix_too_large_to_copy_stays_in_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyllmcancel.scheduling.swap_space.MAX_COPIED_BYTES", 59 * BYTES_PER_CELL)
    cache = cache_of(context_with(LONG, n_seq_max=2), swap_bytes=1 << 20)
    maintained(cache, 3 * SWAP_AFTER_STEPS)
    assert cache.n_cells == 60


SESSION = Holder(in_session=True)


def test_copies_of_a_session_are_deleted_after_all_others() -> None:
    store = SwapSpace(context_with(), 130 * BYTES_PER_CELL)
    store.add(SwappedPrefix([1, *LONG]), SESSION)
    for first in (2, 3):
        store.add(SwappedPrefix([first, *LONG]), Holder())
    assert n_found(store, 1, 2, 3) == [61, 0, 61]
    for first in (4, 5):
        store.add(SwappedPrefix([first, *LONG]), SESSION)
    assert n_found(store, 1, 3, 4, 5) == [0, 0, 61, 61]


def test_idle_prefixes_of_a_session_are_evicted_after_all_others() -> None:
    context = context_with(LONG, LONG[::-1])
    cache = cache_of(context)
    used(cache, 0, len(LONG), holder=SESSION)
    used(cache, 1, len(LONG))
    cache.evict(1)
    assert [context.n_committed(seq) for seq in (0, 1)] == [len(LONG), 0]
    cache.evict(1)
    assert context.n_committed(0) == 0


def test_of_copies_the_owner_with_the_most_bytes_loses_the_oldest() -> None:
    store = SwapSpace(context_with(), 100 * BYTES_PER_CELL)
    store.add(SwappedPrefix([7] * 20), Holder("bob"))
    for number in range(50):
        store.add(SwappedPrefix([10 + number] * 20), Holder("ann", in_session=True))
    assert store.find([*[7] * 20, 1], 0, 1000, Holder("bob"))[1] == 20
    assert store.n_bytes <= store.limit
    assert store.find([*[59] * 20, 1], 0, 1000, Holder("ann"))[1] == 20
    assert store.find([*[10] * 20, 1], 0, 1000, Holder("ann"))[1] == 0
