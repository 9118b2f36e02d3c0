"""The waiting queue: a queue for each owner, turns over owners, priorities inside, limits."""

import pytest

from pyllmcancel.errors import QueueFullError
from pyllmcancel.requests.waiting_queue import WaitingQueue
from tests.support.bare_requests import bare_request


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
