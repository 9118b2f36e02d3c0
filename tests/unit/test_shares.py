"""The resources that owners share: however greedy some are, there is some for the next, and nobody loses its share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.shares import Owners, Remembered, Shares, largest_first


def greedy(shares: Shares, owner: str) -> int:
    """How much an owner gets that takes all it can."""
    n = 0
    while shares.take(owner):
        n += 1
    return n


def test_one_owner_may_have_all() -> None:
    shares = Shares(64, Owners(several=False))
    assert greedy(shares, "") == 64
    shares.give_back("", 4)
    assert greedy(shares, "") == 4


@pytest.mark.parametrize("n_greedy", [1, 2, 3, 5])
def test_however_many_are_greedy_there_is_some_for_the_next(n_greedy: int) -> None:
    shares = Shares(60, Owners(several=True))
    taken = [greedy(shares, f"greedy {number}") for number in range(n_greedy)]
    assert sum(taken) < 60
    assert shares.take("another")


def test_what_an_owner_gives_back_is_there_for_others() -> None:
    shares = Shares(60, Owners(several=True))
    assert greedy(shares, "ann") == 30
    assert greedy(shares, "bob") == 15
    shares.give_back("ann", 30)
    assert greedy(shares, "bob") == 15


def test_the_least_is_given_while_it_is_free() -> None:
    shares = Shares(10, Owners(several=True), least=8)
    assert shares.take("ann", 8)
    assert not shares.take("ann", 1)
    assert not shares.take("bob", 3)
    assert shares.take("bob", 2)


def test_the_owner_with_the_most_forgets_its_oldest() -> None:
    remembered = Remembered[int, str](10)
    for number in range(3):
        remembered.put("bob", number, "bob's")
    for number in range(100):
        remembered.put("ann", number, "ann's")
    assert [remembered.get("bob", number) for number in range(3)] == ["bob's"] * 3
    assert (remembered.get("ann", 92), remembered.get("ann", 93)) == (None, "ann's")
    assert len(remembered) == 10


def test_what_is_taken_out_is_not_remembered() -> None:
    remembered = Remembered[str, int](2)
    remembered.put("ann", "a", 1)
    assert (remembered.pop("ann", "a"), remembered.pop("ann", "a"), remembered.pop("bob", "a")) == (1, None, None)
    assert len(remembered) == 0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=20), st.integers(0, 60))
def test_nobody_loses_anything_within_its_share(kept: list[tuple[str, int]], limit: int) -> None:
    held = {owner: sum(size for other, size in kept if other == owner) for owner in "abc"}
    left = dict(held)
    for owner, size in largest_first(kept, lambda one: one[0], lambda one: one[1], held):
        if sum(left.values()) <= limit:
            break
        assert left[owner] * sum(map(bool, left.values())) >= sum(left.values()), "it had less than its share"
        left[owner] -= size
    assert sum(left.values()) <= limit


def test_what_cannot_be_forgotten_counts_for_its_owner() -> None:
    order = largest_first(["a1", "b1", "a2"], lambda one: one[0], lambda _: 1, {"a": 2, "b": 5})
    assert list(order) == ["b1", "a1", "a2"]
