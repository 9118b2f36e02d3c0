"""From the engine thread to readers in event loops and in threads."""

import asyncio
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyllmcancel.cancellation import CancelReason
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
        self.waited_for = threading.Event()
        self.events = _Waited(self.waited_for)


class _Waited(queue.SimpleQueue[Event]):
    def __init__(self, waited_for: threading.Event) -> None:
        super().__init__()
        self._waited_for = waited_for

    def get(self, block: bool = True, timeout: float | None = None) -> Event:
        self._waited_for.set()
        return super().get(block, timeout)


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
    with pytest.raises(RequestCancelled) as caught:
        next(stream_of(ending(FinishReason.CANCELLED, cancel_reason=CancelReason.SUPERSEDED)))
    assert caught.value.reason is CancelReason.SUPERSEDED
    assert caught.value.usage == Usage()


def test_a_failed_answer_raises_what_went_wrong() -> None:
    with pytest.raises(RequestFailed, match="it broke"):
        next(stream_of(ending(FinishReason.ERROR, error="it broke")))


def test_a_stream_dropped_after_the_end_says_nothing() -> None:
    controls, request = Controls(), bare_request()
    request.ended.set_result(ending())
    stream = ThreadStream(request, controls, ThreadSink())
    del stream
    assert controls.drops == []


def test_a_stream_dropped_after_its_cancel_says_nothing() -> None:
    controls, request = Controls(), bare_request()
    stream = ThreadStream(request, controls, ThreadSink())
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


class InterruptedQueue:
    """Ctrl-C comes while a reader waits for an event."""

    def __init__(self, ctrl_c: Callable[[], None]) -> None:
        self.get = ctrl_c

    def put(self, event: Event) -> None: ...


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Press Ctrl-C; works in background jobs too, which begin with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_in_a_waiting_reader_cancels_the_request(driver: Driver, ctrl_c: Callable[[], None]) -> None:
    tracked = driver.submit(stream=True)
    tracked.sink.events = InterruptedQueue(ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        next(tracked.stream)
    assert tracked.ending.cancel_reason is CancelReason.EXPLICIT


def test_ctrl_c_inside_the_with_block_leaves_nothing_running(driver: Driver, ctrl_c: Callable[[], None]) -> None:
    driver.gate.open()
    with pytest.raises(KeyboardInterrupt), driver.engine.generate("prompt", temperature=0.0) as stream:
        ctrl_c()
    assert stream.request.ended.done()
    assert driver.context.open_seqs == []


async def test_deltas_that_came_together_are_read_together() -> None:
    request, sink = bare_request(), LoopSink(asyncio.get_running_loop())
    for event in (delta("a"), delta("b"), ending()):
        sink.put(event)
    request.ended.set_result(ending())
    stream = AsyncStream(request, Controls(), sink)
    assert [[event.text for event in batch] async for batch in stream.batches()] == [["a", "b"]]
