"""When waiting requests are expected to start."""

import pytest

from pyllmcancel.requests.request import Request
from pyllmcancel.scheduling.fair_share import FairShare
from pyllmcancel.scheduling.forecast import Job, Patience, starts
from tests.support.bare_requests import bare_request


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
