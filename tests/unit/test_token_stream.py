"""From the engine thread to readers in event loops and in threads."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.engine.calls import generation_params
from pyllmcancel.errors import RequestCancelled, RequestFailed, UsageError
from pyllmcancel.events import Delta, Ending, Event, FinishReason, RequestStatus, Usage
from pyllmcancel.requests.request import Request
from pyllmcancel.requests.token_stream import AsyncStream, LoopSink, Outbox, ThreadSink, ThreadStream
from tests.support.bare_requests import bare_request
from tests.support.driver import Driver
from tests.support.step_gate import TEST_LIMIT

pytestmark = pytest.mark.anyio


class Controls:
    """Records what streams ask for."""

    forked = False

    def __init__(self) -> None:
        self.cancelled: list[CancelReason] = []
        self.drops: list[str] = []

    def cancel(self, request: Request, reason: CancelReason) -> bool:
        self.cancelled.append(reason)
        return request.cancellation.request(reason)

    def dropped(self, request: Request) -> None:
        self.drops.append(request.id)


def delta(text: str) -> Delta:
    return Delta(0, text)


def ending(reason: FinishReason = FinishReason.STOP, **options: object) -> Ending:
    return Ending(reason, Usage(), RequestStatus.DECODE, **options)


def stream_of(*events: Event) -> ThreadStream:
    """The stream of a request that has ended, and whose events have come."""
    request, sink = bare_request(), ThreadSink()
    for event in events:
        sink.put(event)
    request.ended.set_result(events[-1])
    return ThreadStream(request, Controls(), sink)


class CountingLoop:
    """Stands where an event loop stands, and keeps what it is asked to call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: object) -> None:
        self.calls.append((call, arguments))

    def run(self) -> None:
        for call, arguments in self.calls:
            call(*arguments)


def test_the_events_of_a_step_wake_each_loop_once() -> None:
    first, second = CountingLoop(), CountingLoop()
    sinks = [LoopSink(loop) for loop in (first, first, second, first)]
    outbox = Outbox()
    for number, sink in enumerate(sinks):
        outbox.add(sink, delta(str(number)))
    outbox.flush()
    outbox.flush()
    assert (len(first.calls), len(second.calls)) == (1, 1)
    first.run()
    second.run()
    assert all(sink.next_is_delta() for sink in sinks)


def test_a_loop_that_was_closed_does_not_keep_others_from_their_events() -> None:
    closed, alive, outbox = asyncio.new_event_loop(), CountingLoop(), Outbox()
    closed.close()
    outbox.add(LoopSink(closed), delta("x"))
    outbox.add(LoopSink(alive), delta("y"))
    outbox.flush()
    assert len(alive.calls) == 1


def test_a_thread_stream_gives_deltas_until_the_end() -> None:
    stream = stream_of(delta("a"), delta("b"), ending())
    assert [event.text for event in stream] == ["a", "b"]
    assert stream.ending == ending()
    assert list(stream) == []


class WaitedForSink(ThreadSink):
    """Says when a thread waits for its events."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for, get = threading.Event(), self.events.get
        self.events = SimpleNamespace(put=self.events.put, get=lambda *wait: (self.waited_for.set(), get(*wait))[1])


def test_a_second_thread_that_reads_gets_an_error_and_the_first_reads_on() -> None:
    request, sink, controls = bare_request(), WaitedForSink(), Controls()
    request.ended.set_result(ending())
    stream = ThreadStream(request, controls, sink)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(list, stream)
        assert sink.waited_for.wait(TEST_LIMIT)
        with pytest.raises(UsageError, match="one reader at a time"):
            next(stream)
        sink.put(delta("a"))
        sink.put(ending())
        assert [event.text for event in first.result(TEST_LIMIT)] == ["a"]
    assert list(stream) == []
    assert controls.cancelled == []


def test_threads_may_read_a_stream_in_turn() -> None:
    stream = stream_of(delta("a"), delta("b"), ending())
    with ThreadPoolExecutor(1) as threads:
        assert next(stream).text == "a"
        assert threads.submit(next, stream).result(TEST_LIMIT).text == "b"
        assert list(stream) == []


def test_a_cancelled_answer_never_looks_complete() -> None:
    stream = stream_of(ending(FinishReason.CANCELLED, cancel_reason=CancelReason.SUPERSEDED))
    stream.request.cancellation.request(CancelReason.SUPERSEDED)
    with pytest.raises(RequestCancelled) as caught:
        next(stream)
    assert caught.value.reason is CancelReason.SUPERSEDED
    assert caught.value.usage == Usage()


def test_a_failed_answer_raises_what_went_wrong() -> None:
    with pytest.raises(RequestFailed, match="it broke"):
        next(stream_of(ending(FinishReason.ERROR, error="it broke")))


@pytest.mark.parametrize("ended", [False, True])
def test_a_stream_dropped_after_its_cancel_or_its_end_says_nothing(ended: bool) -> None:
    controls, request = Controls(), bare_request()
    stream = ThreadStream(request, controls, ThreadSink())
    if ended:
        request.ended.set_result(ending())
    else:
        assert stream.cancel()
    del stream
    assert controls.drops == []


def test_a_dropped_stream_of_an_engine_frees_its_slot(driver: Driver) -> None:
    tracked = driver.submit(stream=True)
    with pytest.warns(ResourceWarning, match=f"{tracked.request.id} was dropped before its end"):
        tracked.stream = None
    assert tracked.ending.cancel_reason is CancelReason.DISCONNECT
    assert driver.context.open_seqs == []


def test_leaving_the_with_block_early_cancels_and_waits_for_the_end(driver: Driver) -> None:
    driver.gate.let_through()  # the prompt; the step after it waits, or the answer might be complete first
    with driver.engine.generate("prompt", temperature=0.0, max_tokens=1000) as stream:
        next(stream)
    assert stream.request.ended.done()
    assert stream.request.cancellation.reason is CancelReason.EXPLICIT
    assert driver.context.open_seqs == []


def test_leaving_the_with_block_after_the_end_cancels_nothing(driver: Driver) -> None:
    driver.gate.open()
    with driver.engine.generate("prompt", temperature=0.0, max_tokens=3) as stream:
        assert len(list(stream)) == 3
    assert not stream.request.cancellation.requested


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Press Ctrl-C; works in background jobs too, which begin with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_waiting_reader_cancels_the_request(driver: Driver, ctrl_c: Callable[[], None]) -> None:
    tracked = driver.submit(stream=True)
    tracked.sink.events = SimpleNamespace(get=ctrl_c, put=lambda _event: None)
    with pytest.raises(KeyboardInterrupt):
        next(tracked.stream)
    assert tracked.ending.cancel_reason is CancelReason.EXPLICIT


async def test_deltas_that_came_together_are_read_together() -> None:
    request, sink = bare_request(), LoopSink(asyncio.get_running_loop())
    for event in (delta("a"), delta("b"), ending()):
        sink.put(event)
    request.ended.set_result(ending())
    stream = AsyncStream(request, Controls(), sink)
    assert [[event.text for event in batch] async for batch in stream.batches()] == [["a", "b"]]


# -- event loops -------------------------------------------------------------------------------------------------------


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
    with suppress(ZeroDivisionError):
        async with agenerate(driver, max_tokens=1000) as stream:
            await anext(stream)
            raise ZeroDivisionError
    assert stream.request.ended.done()
    assert stream.request.cancellation.reason is CancelReason.EXPLICIT


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
