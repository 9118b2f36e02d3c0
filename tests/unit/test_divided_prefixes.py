"""Idle prefixes where each sequence has cells of its own, and only neighbours compute together."""

import pytest

from pyllmcancel.scheduling.prefix_cache import SWAP_AFTER_STEPS, PrefixCache, PrefixMatch
from tests.support.fake_native import BYTES_PER_CELL
from tests.support.idle_prefixes import LONG, RUNNING, cache_of, context_with


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
