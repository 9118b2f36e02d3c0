"""The processor time of reading one piece of a stream: by the front's own decoder of chunks, and by h11."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import h11

from bench.scenarios.report import Report
from pyllmcancel.front.upstream import Chunks

if TYPE_CHECKING:
    from bench.models.settings import Settings

TURNS, N_PIECES = 9, 5_000
EVENT = b'data: {"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": " foo"}]}\n\n'
PIECE = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


async def run(_settings: Settings) -> Report:
    """The cost of h11 for each token, beside that of the decoder that is used."""
    report = Report("decoding a piece")
    spent: dict[str, list[float]] = {"its own decoder": [], "h11": []}
    for _ in range(TURNS):
        for (_, found), make in zip(spent.items(), (own, by_h11), strict=True):
            found.append(microseconds(make()))
    for name, found in spent.items():
        report.figure(name, f"{sorted(found)[TURNS // 2]:.2f} µs a piece (median of {TURNS} turns)")
    report.check("both were measured", all(spent.values()))
    return report


def microseconds(take: Callable[[bytes], None]) -> float:
    before = time.process_time()
    for _ in range(N_PIECES):
        take(PIECE)
    return (time.process_time() - before) / N_PIECES * 1e6


def own() -> Callable[[bytes], None]:
    decoder = Chunks()

    def take(data: bytes) -> None:
        if decoder.feed(data) != EVENT:
            raise RuntimeError("a piece was lost")

    return take


def by_h11() -> Callable[[bytes], None]:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "localhost")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(HEAD)
    connection.next_event()

    def take(data: bytes) -> None:
        connection.receive_data(data)
        event = connection.next_event()
        if not isinstance(event, h11.Data) or bytes(event.data) != EVENT:
            raise RuntimeError("a piece was lost")
        connection.next_event()

    return take
