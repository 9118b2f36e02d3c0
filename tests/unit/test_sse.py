"""Events are the same however the network cuts them, and an endless one is refused."""

import pytest

from pyllmcancel.sse import BrokenFeedError, EventDecoder, ServerEvent

STREAM = (
    ": hello\n\nid: b-1\r\nevent: step\r\ndata: one\u2028\r\ndata:two\r\n\r\n"
    "data: {}\n\nid: b-2\n\nretry: 5\ndata: x\n\n: ping\n\ndata: é\r\rdata: z\r\n\r\n"
)
EVENTS = [
    ServerEvent("b-1", "step", "one\u2028\ntwo"),
    ServerEvent("b-1", "message", "{}"),
    ServerEvent("b-2", "message", "x"),
    ServerEvent("b-2", "message", "é"),
    ServerEvent("b-2", "message", "z"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_they_are_cut(size: int) -> None:
    decoder, data = EventDecoder(), STREAM.encode()
    found = [event for i in range(0, len(data), size) for event in decoder.feed(data[i : i + size])]
    assert found == EVENTS


def test_half_an_event_is_none() -> None:
    assert EventDecoder().feed(b"id: 1\ndata: x\n") == []


def test_an_event_ends_with_its_last_line_end_though_half_of_that_may_follow() -> None:
    decoder = EventDecoder()
    assert decoder.feed(b"data: x\r\n\r") == [ServerEvent("", "message", "x")]
    assert decoder.feed(b"\n") == decoder.feed(b"") == []
    assert decoder.feed(b"data: y\n\n") == [ServerEvent("", "message", "y")]


def test_no_line_end_gets_into_an_id() -> None:
    (event,) = EventDecoder().feed(b"id: a\rb\ndata: x\n\n")
    assert event == ServerEvent("a", "message", "x")


def test_an_error_field_is_an_event_without_the_empty_line() -> None:
    assert EventDecoder().feed(b'error: {"code": 500}\n') == [ServerEvent("", "error", '{"code": 500}')]


@pytest.mark.parametrize("data", [b"x" * 65, b"data: 34567890\n" * 6])
def test_an_endless_event_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenFeedError):
        EventDecoder(longest=64).feed(data)


@pytest.mark.parametrize("event_id", ["\u00e9", "a\x00b", "\x1b[2J", "a" * 300])
def test_an_id_that_no_header_can_carry_is_none(event_id: str) -> None:
    (event,) = EventDecoder().feed(f"id: {event_id}\ndata: x\n\n".encode())
    assert event == ServerEvent("", "message", "x")
