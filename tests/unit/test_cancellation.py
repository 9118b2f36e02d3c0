"""The intent to cancel: the first reason wins, and one of many cancels, or the end, decides."""

import threading

import pytest

from pyllmcancel.cancellation import Cancellation, CancelReason
from tests.support.fake_model import CancelFlag


def test_the_first_reason_wins() -> None:
    cancellation = Cancellation(CancelFlag())
    cancellation.request(CancelReason.DEADLINE)
    first_at = cancellation.requested_at
    assert not cancellation.request(CancelReason.SHUTDOWN)
    assert cancellation.reason is CancelReason.DEADLINE
    assert cancellation.requested_at == first_at


def test_a_request_cannot_end_twice() -> None:
    cancellation = Cancellation(CancelFlag())
    cancellation.seal()
    with pytest.raises(RuntimeError, match="twice"):
        cancellation.seal()


def test_a_thread_that_sees_the_flag_finds_a_reason() -> None:
    flag = CancelFlag()
    cancellation = Cancellation(flag)
    seen: list[CancelReason | None] = []
    flag.watch(lambda: seen.append(cancellation.reason))
    cancellation.request(CancelReason.DISCONNECT)
    assert seen == [CancelReason.DISCONNECT]


@pytest.mark.parametrize("ends", [False] * 5 + [True] * 20)
def test_of_many_threads_that_cancel_at_once_one_decides_or_the_end_does(ends: bool) -> None:
    cancellation = Cancellation(CancelFlag())
    line = threading.Barrier(9)
    decided: list[bool] = []

    def cancel() -> None:
        line.wait()
        decided.append(cancellation.request(CancelReason.EXPLICIT))

    threads = [threading.Thread(target=cancel) for _ in range(8)]
    for thread in threads:
        thread.start()
    line.wait()
    reason = cancellation.seal() if ends else CancelReason.EXPLICIT
    for thread in threads:
        thread.join()
    assert sorted(decided) == [False] * 7 + [reason is not None]
