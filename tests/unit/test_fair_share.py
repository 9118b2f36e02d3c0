"""Which choice is next, and which one gives way, between owners and between priorities."""

from itertools import count

import pytest

from pyllmcancel.requests.request import Choice
from pyllmcancel.scheduling.fair_share import FairShare
from tests.support.bare_requests import bare_request

names = count()


def choices(*of: str | tuple[str, int]) -> list[Choice]:
    """One of each owner, or (owner, priority)."""
    pairs = [(one, 0) if isinstance(one, str) else one for one in of]
    requests = [bare_request(f"r{next(names)}", owner=owner, priority=priority) for owner, priority in pairs]
    return [request.choices[0] for request in requests]


def test_of_one_owner_the_first_candidate_is_next() -> None:
    first, second = choices("a", "a")
    assert FairShare().next_start([first, second], running=choices("a", "a")) is first
    assert FairShare().next_start([], running=[]) is None


def test_the_owner_that_holds_the_fewest_slots_is_next() -> None:
    first, second, third = choices("a", "b", "c")
    assert FairShare().next_start([first, second, third], running=choices("a", "a", "b", "c", "c")) is second


def test_of_owners_that_hold_as_many_the_last_to_have_started_is_last() -> None:
    shares, (first, second, third) = FairShare(), choices("a", "b", "c")
    for expected in (first, second, third, first):
        assert shares.next_start([first, second, third], running=[]) is expected
        shares.note_start(expected)


def test_of_an_owner_the_highest_priority_is_next_and_does_not_count_between_owners() -> None:
    low, high, other = choices(("a", -1), ("a", 1), "b")
    assert FairShare().next_start([low, high, other], running=choices("b")) is high
    assert FairShare().next_start([low, high, other], running=choices("a")) is other


@pytest.mark.parametrize(
    ("held", "gives"),
    [("", ""), ("b", ""), ("bb", "b"), ("abb", ""), ("abbb", "b"), ("aa", ""), ("bbcc", "c"), ("ccbb", "b")],
)
def test_an_owner_gives_way_that_holds_two_slots_more(held: str, gives: str) -> None:
    running = choices(*held)
    expected = None
    if gives:
        expected = [choice for choice in running if choice.request.owner == gives][-1]
    (waiting,) = choices("a")
    assert FairShare.gives_way_to(waiting, running) is expected


def test_a_lower_priority_of_the_same_owner_gives_way_the_lowest_and_newest_first() -> None:
    running = choices(("a", 0), ("a", -1), ("a", -1), ("b", -1), ("a", 1))
    assert [FairShare.gives_way_to(*choices(("a", priority)), running) for priority in (-1, 0, 1)] == [
        None,
        running[2],
        running[2],
    ]


def test_the_owner_with_the_most_slots_gives_way_before_a_lower_priority() -> None:
    running = choices(("a", -1), "b", ("b", 1), "b")
    assert FairShare.gives_way_to(*choices(("a", 1)), running) is running[3]


def test_without_cells_the_newest_goes_first_of_the_owner_with_the_most_slots() -> None:
    assert FairShare.first_to_go(one_owner := choices("a", "a", "a")) is one_owner[2]
    assert FairShare.first_to_go(even := choices("a", "b")) is even[1]
    assert FairShare.first_to_go(more := choices("a", "a", "b")) is more[1]
    assert FairShare.first_to_go(lower := choices("a", ("a", -1), ("a", 1))) is lower[1]


def test_of_one_owner_prompts_are_computed_by_priority_then_age() -> None:
    first, second, third = choices("a", ("a", 1), "a")
    assert FairShare().prompts_in_turn([first, second, third]) == [second, first, third]


def test_owners_take_turns_with_their_prompts() -> None:
    shares, prompts = FairShare(), choices("a", "a", "b", "c")
    first, second, third, fourth = prompts
    assert shares.prompts_in_turn(prompts) == [first, third, fourth, second]
    shares.note_step([], first)
    assert shares.prompts_in_turn(prompts) == [third, fourth, first, second]
    shares.note_step([], third)
    assert shares.prompts_in_turn(prompts) == [fourth, first, third, second]


def test_decode_steps_are_turns_too_and_of_equal_ones_the_last_prompt_decides() -> None:
    shares, (first, second) = FairShare(), choices("a", "b")
    shares.note_step([], first)
    shares.note_step([second], None)
    assert shares.prompts_in_turn([first, second]) == [first, second]
    shares.note_step([first, second], None)
    assert shares.prompts_in_turn([first, second]) == [second, first]


def test_a_step_that_did_not_count_was_no_turn() -> None:
    shares, (first, second) = FairShare(), choices("a", "b")
    shares.note_step([], second)
    shares.note_step([], first)
    shares.undo_step()
    shares.undo_step()
    assert shares.prompts_in_turn([second, first]) == [first, second]
