"""An answer on its way to a client whose connection has failed, or that does not read."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import RequestCancelled
from pyllmcancel.front.forwarding import ClientAnswer, RelayedAnswer
from pyllmcancel.front.requests import FrontRequest


@pytest.mark.anyio
async def test_nothing_is_written_to_a_connection_that_has_failed() -> None:
    """Asyncio would warn of it after some pieces."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    failed = SimpleNamespace(is_closing=True)
    answer = ClientAnswer({"state": {"connection": failed}, "http_version": "1.1"}, send)
    await answer.begin(200, [])
    for _ in range(10):
        await answer.write(b"piece")
    assert sent == ["http.response.start"]


@pytest.mark.anyio
async def test_a_stream_that_its_second_process_does_not_begin_ends_with_its_cancel() -> None:
    async def send(_: Any) -> None: ...

    request = FrontRequest()
    answer = RelayedAnswer({"state": {}, "http_version": "1.1"}, send, request)
    await answer.begin(200, [(b"content-type", b"text/event-stream")])
    request.cancellation.request(CancelReason.SUPERSEDED)
    link: Any = None
    with pytest.raises(RequestCancelled) as caught:
        await answer.begin_as(link, 499, [(b"content-type", b"application/json")], [])
    assert caught.value.reason == "superseded"


@pytest.mark.anyio
async def test_a_piece_that_waits_for_its_client_when_the_request_is_cancelled_is_not_lost() -> None:
    sent, reads = list[bytes](), asyncio.Event()

    async def send(message: Any) -> None:
        await reads.wait()
        sent.append(message.get("body", b""))

    request = FrontRequest()
    answer = RelayedAnswer({"state": {}, "http_version": "1.1"}, send, request)
    reads.set()
    await answer.begin(200, [])
    await answer.deliver(b"1")
    reads.clear()
    writing = asyncio.create_task(answer.deliver(b"2"))
    await asyncio.sleep(0)  # it waits
    request.cancellation.request(CancelReason.EXPLICIT)
    writing.cancel()
    await asyncio.wait([writing])
    await answer.deliver(b"3")
    reads.set()
    await answer.finish()
    assert b"".join(sent) == b"123"
