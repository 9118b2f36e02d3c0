"""Answers of workers, however they are cut on their way, and connections to workers."""

import asyncio
import errno
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.front.link import FrontLink
from pyllmcancel.front.upstream import Address, Broken, WorkerConnection
from pyllmcancel.server.behind import BODY, STATE


class Transport:
    """A connection that carries nothing."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def exchange_on(transport: Transport) -> WorkerConnection:
    exchange = WorkerConnection(has_body=True)
    exchange.connection_made(transport)  # type: ignore[arg-type]
    return exchange


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.data())
def test_chunks_are_decoded_however_they_are_cut(pieces: list[bytes], data: st.DataObject) -> None:
    sent = HEAD + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))

    async def read() -> bytes:
        exchange = exchange_on(Transport())
        answer = asyncio.create_task(read_whole(exchange))
        for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            assert not answer.done() or begin >= len(sent) - 2
            if end > begin:  # as asyncio: no call without data
                exchange.data_received(sent[begin:end])
            await asyncio.sleep(0)
        return await answer

    assert asyncio.run(read()) == b"".join(pieces)


async def read_whole(exchange: WorkerConnection) -> bytes:
    await exchange.head()
    return await exchange.whole()


@pytest.mark.anyio
@pytest.mark.parametrize("sent", [HEAD + b"xyz\r\n", HEAD + b"a" * 100_000, b"HTTP/1.1 200\r\nnone\r\n\r\n", b"\0\r\n"])
async def test_what_is_no_answer_is_an_error(sent: bytes) -> None:
    exchange = exchange_on(Transport())
    exchange.data_received(sent)
    with pytest.raises(Broken):
        await read_whole(exchange)


def test_a_connection_need_be_no_subclass_of_asyncios() -> None:
    """As uvloop's, which uvicorn uses where it is installed."""
    transport = Transport()
    exchange_on(transport).close()
    assert transport.aborted


@pytest.mark.anyio
async def test_a_full_backlog_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        code = 0
        while code != errno.EAGAIN:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            code = waiting.connect_ex(str(path))
        begun = asyncio.create_task(WorkerConnection.begin(Address("key", path), "GET", b"/", [], b""))
        await asyncio.wait([begun], timeout=0.05)
        assert not begun.done()
        stack.enter_context(listener.accept()[0])
        (await begun).close()


@pytest.mark.anyio
async def test_a_state_overtakes_what_waits_for_the_client() -> None:
    link = FrontLink(has_body=True)
    link.pass_on = lambda _piece: False
    link._sort([(BODY, b"passed on"), (BODY, b"next"), (STATE, b"[]")])
    assert [await link.next() for _ in range(3)] == [(STATE, b"[]"), (BODY, b""), (BODY, b"next")]
