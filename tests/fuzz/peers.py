"""Input from other servers: messages, replies to this server's questions, and events of their feeds."""

from __future__ import annotations

import json

from pyllmcancel.server.fleet.events.relayed import relayed
from pyllmcancel.server.http.request_context import PEERS_PATH
from pyllmcancel.sse import BrokenFeedError, EventDecoder
from tests.fuzz.serving import no_number, serving

# Each asks the peer, too, before it is answered.
QUESTIONS = (
    ("GET", "/v1/requests", b""),
    ("GET", "/v1/requests/b", b""),
    ("GET", "/v1/sessions", b""),
    ("GET", "/v1/sessions/s", b""),
    ("POST", "/v1/requests/b/cancel", b""),
    ("POST", "/v1/requests/b/cancel?hold=0.001", b""),
    ("POST", "/v1/requests/cancel", b'{"session": "s"}'),
    ("POST", "/v1/requests/cancel", b'{"request_ids": ["a", "b"]}'),
    ("POST", "/v1/sessions/s/cancel", b""),
    ("POST", "/v1/sessions/t/cancel?descendants=true&hold=0.001", b""),
    ("GET", "/v1/responses/resp_b", b""),
    ("POST", "/v1/responses/resp_b/cancel", b""),
    ("DELETE", "/v1/responses/resp_b", b""),
    ("GET", "/v1/stream/b", b""),
)


def peer_messages(data: bytes) -> None:
    """A message from a server that is a peer, or a whole body if it is no JSON."""
    try:
        body = json.dumps({"sender": serving().other, "message": json.loads(data)}).encode()
    except (ValueError, RecursionError):
        body = data
    if len(body) < 4 or b'"follow"' not in body:  # its answer is a stream that does not end
        serving().exchange("POST", PEERS_PATH, body, peer=True)


def peer_replies(data: bytes) -> None:
    """A peer's reply to one of a client's questions, and to news."""
    if not data:
        return
    served = serving()
    sender = json.dumps(served.other).encode()
    served.peer.body = b'{"sender": ' + sender + b', "reply": ' + data[1:] + b"}"
    method, path, body = QUESTIONS[data[0] % len(QUESTIONS)]
    served.run(heard())
    try:
        served.exchange(method, path, body)
    except AssertionError:
        if b'"refused"' not in data:  # a peer's own error, which is passed on, may be any
            raise


async def heard() -> None:
    served = serving()
    served.peer.heard([served.peer.answer()])


def peer_events(data: bytes) -> None:
    """An event of a peer's feed, cut anywhere, or the bytes of a feed if it is no JSON."""
    if not data:
        return
    width, text = 1 + data[0] % 31, data[1:]
    try:
        json.loads(text)
        text = b"id: 1\ndata: " + text.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n\n"
    except (ValueError, RecursionError):
        pass
    decoder = EventDecoder(1 << 16)
    try:
        events = [event for begin in range(0, len(text), width) for event in decoder.feed(text[begin : begin + width])]
        assert events == EventDecoder(1 << 16).feed(text)
        passed_on = [relayed("other", event.data.encode()) for event in events]
    except BrokenFeedError:
        return
    except ValueError:  # how an upstream refuses events
        return
    for event in passed_on:
        for owner in (None, "", "ann"):
            for counts in (False, True):
                seen = event.seen_by(owner, counts=counts)
                assert seen is None or json.loads(seen, parse_constant=no_number)
