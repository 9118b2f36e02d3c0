"""The chunks of an answer, however they are cut on their way."""

import asyncio
import errno
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyllmcancel.front.upstream import Address, Chunks, Exchange


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=5), st.data())
def test_chunks_are_decoded_however_they_are_cut(pieces: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    decoder = Chunks()
    found = b""
    for begin, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        assert decoder.done is False or begin == end or begin >= len(sent) - 2
        found += decoder.feed(sent[begin:end])
    assert found == b"".join(pieces)
    assert decoder.done


def test_what_is_no_chunk_is_an_error() -> None:
    for sent in (b"xyz\r\n", b"a" * 100):
        with pytest.raises(ValueError, match=r"."):
            Chunks().feed(sent)


def test_a_connection_need_be_no_subclass_of_asyncios() -> None:
    """As uvloop's, which uvicorn uses where it is installed."""

    class Transport:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

    transport = Transport()
    exchange = Exchange(has_body=True)
    exchange.connection_made(transport)  # type: ignore[arg-type]
    exchange.close()
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
        begun = asyncio.create_task(Exchange.begin(Address("key", path), "GET", b"/", [], b""))
        await asyncio.wait([begun], timeout=0.05)
        assert not begun.done()
        stack.enter_context(listener.accept()[0])
        (await begun).close()
