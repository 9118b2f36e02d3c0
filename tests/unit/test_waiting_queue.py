"""The waiting queue: first in, first out, and anyone can leave."""

from __future__ import annotations

from pyllmcancel.waiting_queue import WaitingQueue
from tests.support.bare import bare_request


def test_the_oldest_is_the_first_that_came() -> None:
    queue = WaitingQueue(limit=8)
    requests = [bare_request(str(number)) for number in range(3)]
    for request in requests:
        queue.append(request)
    assert queue.oldest() is requests[0]
    assert list(queue) == requests
    assert len(queue) == 3


def test_an_empty_queue_has_no_oldest() -> None:
    assert WaitingQueue(limit=8).oldest() is None


def test_a_request_can_leave_from_the_middle() -> None:
    queue = WaitingQueue(limit=8)
    requests = [bare_request(str(number)) for number in range(3)]
    for request in requests:
        queue.append(request)
    assert queue.withdraw(requests[1])
    assert list(queue) == [requests[0], requests[2]]


def test_only_one_party_gets_a_request_out() -> None:
    queue = WaitingQueue(limit=8)
    request = bare_request()
    queue.append(request)
    assert request in queue
    assert queue.withdraw(request)
    assert not queue.withdraw(request)
    assert request not in queue


def test_a_request_of_the_same_id_is_not_mistaken_for_the_one_that_waits() -> None:
    queue = WaitingQueue(limit=8)
    queue.append(bare_request("same"))
    namesake = bare_request("same")
    assert namesake not in queue
    assert not queue.withdraw(namesake)
    assert len(queue) == 1
