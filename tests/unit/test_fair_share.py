"""The choice that is next and the one that gives way, the queue before them, and the forecast of both."""

from itertools import count

import pytest

from pyllmcancel.errors import QueueFullError
from pyllmcancel.requests.request import Choice, Request
from pyllmcancel.requests.waiting_queue import WaitingQueue
from pyllmcancel.scheduling.fair_share import FairShare
from pyllmcancel.scheduling.forecast import Job, Patience, starts
from tests.support.bare_requests import bare_request

names = count()


def choices(*of: str | tuple[str, int]) -> list[Choice]:
    """One of each owner, or (owner, priority)."""
    pairs = [(one, 0) if isinstance(one, str) else one for one in of]
    requests = [bare_request(f"r{next(names)}", owner=owner, priority=priority) for owner, priority in pairs]
    return [request.choices[0] for request in requests]


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
    assert FairShare.preempted_for(waiting, running) is expected


def test_a_lower_priority_of_the_same_owner_gives_way_the_lowest_and_newest_first() -> None:
    running = choices(("a", 0), ("a", -1), ("a", -1), ("b", -1), ("a", 1))
    assert [FairShare.preempted_for(*choices(("a", priority)), running) for priority in (-1, 0, 1)] == [
        None,
        running[2],
        running[2],
    ]


def test_the_owner_with_the_most_slots_gives_way_before_a_lower_priority() -> None:
    running = choices(("a", -1), "b", ("b", 1), "b")
    assert FairShare.preempted_for(*choices(("a", 1)), running) is running[3]


def test_without_cells_the_newest_goes_first_of_the_owner_with_the_most_slots() -> None:
    assert FairShare.first_to_go(one_owner := choices("a", "a", "a")) is one_owner[2]
    assert FairShare.first_to_go(even := choices("a", "b")) is even[1]
    assert FairShare.first_to_go(more := choices("a", "a", "b")) is more[1]
    assert FairShare.first_to_go(lower := choices("a", ("a", -1), ("a", 1))) is lower[1]


def test_of_one_owner_prompts_are_computed_by_priority_then_age() -> None:
    first, second, third = choices("a", ("a", 1), "a")
    assert FairShare().in_order([first, second, third]) == [second, first, third]


def test_owners_take_turns_with_their_prompts() -> None:
    shares, prompts = FairShare(), choices("a", "a", "b", "c")
    first, second, third, fourth = prompts
    assert shares.in_order(prompts) == [first, third, fourth, second]
    shares.note_step([], first)
    assert shares.in_order(prompts) == [third, fourth, first, second]
    shares.note_step([], third)
    assert shares.in_order(prompts) == [fourth, first, third, second]


def test_decode_steps_are_turns_too_and_of_equal_ones_the_last_prompt_decides() -> None:
    shares, (first, second) = FairShare(), choices("a", "b")
    shares.note_step([], first)
    shares.note_step([second], None)
    assert shares.in_order([first, second]) == [first, second]
    shares.note_step([first, second], None)
    assert shares.in_order([first, second]) == [second, first]


def heads(queue: WaitingQueue) -> list[str]:
    return [request.id for request in queue.heads()]


def take_all(queue: WaitingQueue) -> list[str]:
    taken = []
    while found := queue.heads():
        queue.take(found[0])
        taken.append(found[0].id)
    return taken


def filled(*requests: tuple[str, str, int], **limits: int) -> WaitingQueue:
    queue = WaitingQueue(100, **limits)
    for owner, name, priority in requests:
        queue.append(bare_request(name, owner=owner, priority=priority))
    return queue


def test_owners_take_turns_however_many_requests_one_has() -> None:
    flood = [("flood", f"f{number}", 0) for number in range(5)]
    queue = filled(*flood, ("other", "o1", 0), ("third", "t1", 0), ("other", "o2", 0))
    assert heads(queue) == ["f0", "o1", "t1"]
    assert take_all(queue) == ["f0", "o1", "t1", "f1", "o2", "f2", "f3", "f4"]


def test_of_one_owner_the_higher_priority_comes_first_then_the_one_that_came_first() -> None:
    queue = filled(("", "background", -1), ("", "first", 0), ("", "second", 0), ("", "interactive", 1))
    assert take_all(queue) == ["interactive", "first", "second", "background"]


def test_a_priority_means_nothing_to_another_owner() -> None:
    queue = filled(("a", "a1", 0), ("b", "b1", 1), ("a", "a2", 0))
    assert take_all(queue) == ["a1", "b1", "a2"]


def test_an_owner_at_its_limit_of_running_requests_is_passed_over_until_one_has_ended() -> None:
    queue = filled(("a", "a1", 0), ("a", "a2", 0), ("b", "b1", 0), max_running=1)
    running = queue.heads()[0]
    queue.take(running)
    assert heads(queue) == ["b1"]
    queue.forget(running)
    assert heads(queue) == ["b1", "a2"]


def test_each_owner_has_a_queue_of_its_own_to_fill() -> None:
    queue = WaitingQueue(1, max_running=3)
    queue.append(bare_request("a1", owner="a"))
    queue.check(bare_request("new", owner="b"), n_leaving=0)
    queue.check(bare_request("new", owner="a"), n_leaving=1)
    with pytest.raises(QueueFullError, match=r"1 requests are waiting already, 1 may \(max_queue\), 3 may run"):
        queue.check(bare_request("new", owner="a"), n_leaving=0)


def test_owners_without_requests_are_forgotten() -> None:
    queue = filled(("a", "a1", 0))
    request = queue.heads()[0]
    queue.take(request)
    queue.forget(request)
    assert (len(queue), len(queue._owners)) == (0, 0)


def test_the_prompts_of_an_owner_that_wait_have_a_limit_together_and_one_of_more_may_wait_alone() -> None:
    queue = WaitingQueue(100, max_tokens=10)
    large, small = bare_request("large", prompt=[1] * 11), bare_request("small", prompt=[1] * 5)
    queue.check_tokens(large, None)
    queue.append(small)
    queue.check_tokens(bare_request("fits", prompt=[1] * 5), None)
    queue.check_tokens(large, small)
    queue.check_tokens(bare_request("another's", prompt=[1] * 11, owner="other"), None)
    with pytest.raises(QueueFullError, match="5 tokens are waiting already, 10 may"):
        queue.check_tokens(bare_request("more", prompt=[1] * 6), None)


def played(waiting: str, running: str, *, slots: int = 2, most: int | None = None, stay: float = 1.0) -> list[str]:
    """The order in which jobs start, each with its time; all have prompts of one second, and answers of ten steps."""
    jobs = [
        [Job(bare_request(f"{owner}{i}", owner=owner), 1.0, 10.0) for i, owner in enumerate(owners)]
        for owners in (waiting, running)
    ]
    for job in jobs[1]:
        job.prompt, job.waits = 0.0, False
    found = starts(*jobs, FairShare(), (1.0, 1.0), lambda _request, _seconds: stay, slots=slots, most=most)
    return [f"{job.request.id if job else 'next'} {ahead.position} {ahead.seconds:g}" for job, ahead in found]


@pytest.mark.parametrize(
    ("waiting", "running", "options", "expected"),
    [
        ("aa", "", {}, ["a0 1 0", "a1 2 1", "next 3 12"]),
        ("aa", "a", {"slots": 1}, ["a0 1 10", "a1 2 21", "next 3 32"]),
        ("aaab", "aa", {}, ["b3 1 0", "a0 2 11", "a1 3 22", "a2 4 23", "next 5 34"]),  # the owner of none preempts
        ("aab", "ab", {}, ["a0 1 10", "b2 2 11", "a1 3 22", "next 4 23"]),  # owners take turns
        ("aa", "a", {"most": 1}, ["a0 1 10", "a1 2 21", "next 3 22"]),
        ("aaa", "a", {"slots": 1, "stay": 0.5}, ["a0 1 10", "a1 2 15.5", "a2 3 21", "next 4 26.5"]),
    ],
)
def test_the_order_is_the_schedulers_and_the_time_that_of_the_work_ahead(
    waiting: str, running: str, options: dict[str, float], expected: list[str]
) -> None:
    assert played(waiting, running, **options) == expected  # type: ignore[arg-type]


def test_those_who_have_waited_for_long_are_expected_to_stay() -> None:
    stays = Patience([(1.0, True), (2.0, True), (3.0, False), (4.0, True), (5.0, False)]).after(10.0)

    def waited(seconds: float) -> Request:
        return bare_request(arrived_at=10.0 - seconds)

    assert stays(waited(0.0), 0.5) == 1.0
    assert stays(waited(0.0), 2.5) == pytest.approx(0.6)
    assert stays(waited(2.5), 2.0) == pytest.approx(0.5)
    assert stays(waited(4.5), 99.0) == 1.0
