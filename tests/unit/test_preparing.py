"""Requests in preparation, and the cancels that come to them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from unittest.mock import Mock

import pytest
from fastapi import Request
from starlette.types import Message

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import EngineClosedError, InvalidRequestError, RequestCancelled
from pyllmcancel.pausing import Pause
from pyllmcancel.requests.request import Origin, Rank
from pyllmcancel.requests.request import Request as AcceptedRequest
from pyllmcancel.server.preparing import N_THREADS, Preparation, Preparations

pytestmark = pytest.mark.anyio


@pytest.fixture
async def preparations() -> AsyncIterator[Preparations]:
    made = Preparations()
    yield made
    await made.wait_closed()


ORIGIN: Origin = {"request_id": "mine", "owner": "", "arrived_at": 0.5}


async def no_message() -> Message:
    nothing: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await nothing


def a_request(name: str = "mine") -> Request:
    return Request({"type": "http", "state": {"request_id": name, "arrived_at": 0.0}}, no_message)


async def test_a_cancel_between_the_end_of_the_work_and_its_outcome_is_not_lost() -> None:
    preparation = Preparation(ORIGIN)
    work: Future[None] = Future()
    preparation.note_end(work)
    await preparation.ended.wait()
    assert preparation.cancel(CancelReason.EXPLICIT)
    assert preparation.reason is CancelReason.EXPLICIT


async def test_an_id_that_is_being_prepared_is_refused_to_a_second_request(preparations: Preparations) -> None:
    may_end = threading.Event()

    def work(_pause: Pause) -> str:
        may_end.wait()
        return "done"

    first = asyncio.create_task(preparations.run(a_request(), work, ORIGIN))
    await asyncio.sleep(0)
    try:
        with pytest.raises(InvalidRequestError, match="in use"):
            await preparations.run(a_request(), lambda _pause: "done", ORIGIN)
        found = preparations.find("", "mine")
        assert found is not None
        assert found.cancel(CancelReason.EXPLICIT)
        with pytest.raises(RequestCancelled):
            await first
    finally:
        may_end.set()


async def test_a_text_does_not_wait_for_pictures_that_are_decoded(preparations: Preparations) -> None:
    may_end = threading.Event()
    origins = [ORIGIN | {"request_id": str(n)} for n in range(N_THREADS + 1)]
    decoding = [
        asyncio.create_task(preparations.run(a_request(), lambda _pause: may_end.wait(), origin, decodes=True))
        for origin in origins
    ]
    await asyncio.sleep(0)
    try:
        assert await preparations.run(a_request(), lambda _pause: "text", ORIGIN) == "text"
    finally:
        may_end.set()
    assert all(await asyncio.gather(*decoding))


async def test_long_submissions_of_one_owner_leave_a_thread_to_others() -> None:
    preparations, may_end = Preparations(shared=True), threading.Event()
    accepted = Mock(spec=AcceptedRequest)

    def submit() -> AcceptedRequest:
        may_end.wait()
        return accepted

    greedy = [
        asyncio.create_task(preparations.submit(submit, ORIGIN | {"request_id": str(n), "owner": "a"}, Mock()))
        for n in range(N_THREADS + 1)
    ]
    await asyncio.sleep(0)
    try:
        assert await preparations.submit(lambda: accepted, ORIGIN | {"owner": "b"}, Mock()) is accepted
    finally:
        may_end.set()
    await asyncio.gather(*greedy)
    await preparations.wait_closed()


async def test_what_is_submitted_while_the_server_ends_is_cancelled(preparations: Preparations) -> None:
    begun, may_end = threading.Event(), threading.Event()
    accepted, cancelled = Mock(spec=AcceptedRequest), Mock()

    def submit() -> AcceptedRequest:
        begun.set()
        may_end.wait()
        return accepted

    submitting = asyncio.create_task(preparations.submit(submit, ORIGIN, cancelled))
    await asyncio.to_thread(begun.wait)
    preparations.close()
    with pytest.raises(EngineClosedError):
        await submitting
    may_end.set()
    await preparations.wait_closed()
    cancelled.assert_called_once_with(accepted, CancelReason.SHUTDOWN)


async def test_a_cancel_while_a_request_is_submitted_reaches_what_was_submitted(preparations: Preparations) -> None:
    may_end = threading.Event()
    accepted = Mock(spec=AcceptedRequest)
    cancelled: list[tuple[AcceptedRequest, CancelReason]] = []

    def submit() -> AcceptedRequest:
        may_end.wait()
        return accepted

    submitting = asyncio.create_task(
        preparations.submit(submit, ORIGIN | {"session": "s"}, lambda *which: cancelled.append(which))
    )
    await asyncio.sleep(0)
    found = preparations.find("", "mine")
    assert found is not None
    assert preparations.of_sessions("", {"s"}) == [found]
    assert found.cancel(CancelReason.EXPLICIT)
    may_end.set()
    assert await submitting is accepted
    assert cancelled == [(accepted, CancelReason.EXPLICIT)]
    assert preparations.find("", "mine") is None
    await found.ended.wait()


async def test_a_cancelled_submission_has_ended_when_its_request_is_known_and_cancelled(
    preparations: Preparations,
) -> None:
    may_end = threading.Event()
    accepted = Mock(spec=AcceptedRequest)
    seen: list[bool] = []

    def submit() -> AcceptedRequest:
        may_end.wait()
        return accepted

    submitting = asyncio.create_task(preparations.submit(submit, ORIGIN, lambda *_: seen.append(found.ended.is_set())))
    await asyncio.sleep(0)
    found = preparations.find("", "mine")
    assert found is not None
    found.cancel(CancelReason.EXPLICIT)
    may_end.set()
    await submitting
    assert seen == [False]
    assert found.ended.is_set()
    assert found.accepted is accepted


async def test_what_is_in_preparation_gives_way_to_a_newer_request_of_its_key_elsewhere(
    preparations: Preparations,
) -> None:
    with preparations._listed(ORIGIN | {"supersede": "k", "arrived_us": 5}) as preparation:
        for owner, key, arrived_us in (("", "k", 4), ("", "l", 6), ("ann", "k", 6)):
            preparations.heed(owner, key, Rank(arrived_us, "elsewhere"))
            assert preparation.reason is None
        preparations.heed("", "k", Rank(6, "elsewhere"))
        assert preparation.reason is CancelReason.SUPERSEDED
