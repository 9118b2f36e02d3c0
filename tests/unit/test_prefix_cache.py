"""Which idle sequence a new choice starts from."""

from collections.abc import Iterable

import pytest

from pyllmcancel.scheduling.prefix_cache import PrefixCache, PrefixMatch
from pyllmcancel.scheduling.swap_space import MIN_SHARED_TOKENS
from pyllmcancel.scheduling.swap_store import Holder
from tests.support.idle_prefixes import LONG, RUNNING, cache_of, compute, context_with


def test_of_empty_sequences_the_first_is_taken() -> None:
    cache = cache_of(context_with())
    assert len(cache) == 4
    cache.take(PrefixMatch(0), running=RUNNING)
    assert cache.find(LONG, running=()) == PrefixMatch(1)
    cache.give_back(0)
    assert cache.find(LONG, running=()) == PrefixMatch(0)


def test_with_none_empty_the_least_recently_used_is_taken() -> None:
    cache = cache_of(context_with(*([n] * 5 for n in range(4))))
    cache.take(PrefixMatch(0), running=RUNNING)
    cache.give_back(0)
    assert cache.find(LONG, running=()) == PrefixMatch(1)


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


def test_idle_prefixes_are_taken_over_when_no_sequence_is_empty() -> None:
    cache = cache_of(context_with(LONG, [1] * 10, n_seq_max=2))
    cache.take(PrefixMatch(0), running=RUNNING)
    cache.give_back(0)
    assert cache.find([*LONG[:20], 200], running=()) == PrefixMatch(0, None, 20)


def test_eviction_frees_the_least_recently_used_first_and_no_more_than_needed() -> None:
    context = context_with(LONG[:10], LONG[:20], LONG[:30])
    cache = cache_of(context)
    assert cache.n_cells == 60
    cache.evict(15)
    assert [context.n_committed(seq) for seq in range(3)] == [0, 0, 30]
    assert cache.n_cells == 30


def test_eviction_never_touches_a_running_sequence() -> None:
    context = context_with(LONG, LONG[:20], open_seqs=(0,))
    cache = cache_of(context)
    cache.take(PrefixMatch(0, None, 1), running=RUNNING)
    cache.evict(1000)
    assert [context.n_committed(seq) for seq in range(2)] == [60, 0]


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


def test_eviction_begins_with_the_owner_that_holds_the_most() -> None:
    context = context_with([1] * 30, [2] * 40, [3] * 40)
    held_by(cache_of(context), BOB, ANN, ANN).evict(60)
    assert [context.n_committed(seq) for seq in range(3)] == [30, 0, 0]


def test_who_has_no_more_than_its_share_loses_nothing_to_a_session() -> None:
    context = context_with([1] * 30, [2] * 40)
    held_by(cache_of(context), BOB, Holder("ann", in_session=True)).evict(10)
    assert [context.n_committed(seq) for seq in range(2)] == [30, 0]


def test_cells_that_an_owner_computes_in_count_for_it() -> None:
    context = context_with([1] * 30, [2] * 40, [3] * 20, open_seqs=(1,))
    cache = held_by(cache_of(context), BOB, ANN, ANN)
    cache.take(PrefixMatch(1, None, 40), RUNNING, ANN)
    cache.evict(10)
    assert [context.n_committed(seq) for seq in range(3)] == [30, 40, 0]


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
