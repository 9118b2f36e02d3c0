"""Readers in event loops, on a fake engine: whichever way they leave, their request is cancelled."""

import asyncio

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import RequestCancelled, RequestFailed, UsageError
from pyllmcancel.events import FinishReason
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import AsyncStream
from pyllmcancel.step import StepStatus
from tests.support.driver import Driver
from tests.support.step_gate import TEST_LIMIT

pytestmark = pytest.mark.anyio


def agenerate(driver: Driver, max_tokens: int = 4) -> AsyncStream:
    return driver.engine.agenerate("prompt", generation_params(temperature=0.0, max_tokens=max_tokens))


async def test_an_async_stream_gives_deltas_until_the_end(driver: Driver) -> None:
    driver.gate.open()

    tokens = [token async for delta in agenerate(driver) for token in delta.tokens]
    assert tokens == driver.model.greedy(list(b"prompt"), 4)


async def test_cancelling_the_reading_task_cancels_the_request(driver: Driver) -> None:
    stream = agenerate(driver)

    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)  # let the reader begin to wait
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.request.ended.result(TEST_LIMIT).finish_reason is FinishReason.CANCELLED


async def test_a_second_task_that_reads_gets_an_error_and_the_first_reads_on(driver: Driver) -> None:
    stream = agenerate(driver)

    async def read() -> list[int]:
        return [token async for delta in stream for token in delta.tokens]

    first = asyncio.create_task(read())
    await asyncio.sleep(0)  # let the reader begin to wait
    with pytest.raises(UsageError, match="one reader at a time"):
        await anext(stream)
    driver.gate.open()
    assert await first == driver.model.greedy(list(b"prompt"), 4)


async def test_leaving_async_with_cancels_and_waits_for_the_end(driver: Driver) -> None:
    driver.gate.let_through()  # the prompt; the step after it waits, or the answer might be complete first

    async with agenerate(driver, max_tokens=1000) as stream:
        await anext(stream)
    assert stream.request.ended.done()
    assert stream.request.cancellation.reason is CancelReason.EXPLICIT


async def test_an_exception_inside_async_with_cancels_the_request(driver: Driver) -> None:
    with pytest.raises(ZeroDivisionError):
        async with agenerate(driver) as stream:
            raise ZeroDivisionError
    assert stream.request.ended.result(TEST_LIMIT).finish_reason is FinishReason.CANCELLED


async def test_a_cancelled_request_raises_in_its_async_reader(driver: Driver) -> None:
    stream = agenerate(driver)
    stream.cancel(CancelReason.DEADLINE)
    with pytest.raises(RequestCancelled) as caught:
        await anext(stream)
    assert caught.value.reason is CancelReason.DEADLINE


async def test_a_failed_request_raises_in_its_async_reader(driver: Driver) -> None:
    driver.gate.open()
    driver.context.next_status.append(StepStatus.FAILED_COMPUTE)

    with pytest.raises(RequestFailed, match="failed_compute"):
        await anext(agenerate(driver))


async def test_a_cancelled_waiter_for_the_end_cannot_cancel_the_end(driver: Driver) -> None:
    stream = agenerate(driver)
    waiting = asyncio.ensure_future(asyncio.wrap_future(stream.request.ended))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    driver.gate.open()
    async for _ in stream:
        pass
    assert stream.request.ended.result(TEST_LIMIT).finish_reason is FinishReason.LENGTH


def test_an_event_loop_that_ends_with_requests_in_flight_leaves_nothing_running(driver: Driver) -> None:
    async def main() -> Request:
        stream = agenerate(driver)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        assert not reader.done()
        return stream.request

    request = asyncio.run(main())  # cancels the reader, and closes the loop
    assert request.ended.result(TEST_LIMIT).finish_reason is FinishReason.CANCELLED
