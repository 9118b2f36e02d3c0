"""The evidence of a session is found in its requests and in the server's log; missing evidence is named."""

import json
from typing import Any

import pytest

from tests.clients.evidence import Evidence, evidence
from tests.clients.proxy import Exchange
from tests.clients.steering import CALL_PROMPT, LONG_PROMPT, SAID

TOOLS = [{"type": "function", "function": {"name": "say", "parameters": {}}}]
QUESTION = {"role": "user", "content": CALL_PROMPT}
RESULT = {"role": "tool", "content": SAID}
LONG = {"role": "user", "content": LONG_PROMPT}
STREAM = b"HTTP/1.1 200 OK\r\n\r\n" + b"data: {}\n\n" * 5
REFUSAL = b'HTTP/1.1 400 Bad Request\r\n\r\n{"error": "no"}'
CANCELLED = "request id-2 cancelled (disconnect) in decode after 5 generated tokens, stopped in 1.5 ms, waiting 0\n"


class Server:
    """A server of which only the log, and how a request ended, are asked for."""

    def __init__(self, log: str, seconds: float) -> None:
        self.log, self._seconds = log, seconds

    def request(self, _: str) -> dict[str, Any]:
        return {"created": 1000.0, "seconds": self._seconds}


def exchange(number: int, answer: bytes, *messages: dict[str, Any], **fields: Any) -> Exchange:
    raw = json.dumps({"messages": messages} | fields).encode()
    return Exchange(f"id-{number}", "POST", "/v1/chat/completions", {}, raw, bytearray(answer))


def seen(*exchanges: Exchange, log: str = CANCELLED, seconds: float = 2.0) -> Evidence:
    return evidence(exchanges, Server(log, seconds), left_at=1001.9)  # type: ignore[arg-type]


CALL = exchange(0, STREAM, QUESTION, tools=TOOLS)
ANSWER = exchange(1, STREAM, QUESTION, RESULT, tools=TOOLS)
TURN = exchange(2, STREAM, QUESTION, RESULT, LONG, tools=TOOLS)


def test_a_session_with_all_that_is_asked_for() -> None:
    shown = seen(CALL, ANSWER, TURN)
    assert shown.faults == []
    assert (shown.n_requests, shown.n_events, shown.phase, shown.stopped_ms) == (3, 5, "decode", 1.5)
    assert shown.seconds == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("exchanges", "log", "seconds", "fault"),
    [
        ((), CANCELLED, 2.0, "sent nothing"),
        ((CALL, TURN), CANCELLED, 2.0, None),
        ((CALL, exchange(2, STREAM, LONG)), CANCELLED, 2.0, "used no tool"),
        ((CALL, ANSWER, TURN), "", 2.0, "was not cancelled"),
        ((CALL, ANSWER, TURN), CANCELLED.replace("disconnect", "shutdown"), 2.0, "cancelled by shutdown after 0.1 s"),
        ((CALL, ANSWER, TURN), CANCELLED, 60.0, "cancelled by disconnect after 58.1 s"),
        ((exchange(0, REFUSAL, QUESTION), ANSWER, TURN), CANCELLED, 2.0, "refused: /v1/chat/completions 400"),
    ],
)
def test_what_is_missing_is_named(exchanges: tuple[Exchange, ...], log: str, seconds: float, fault: str | None) -> None:
    faults = seen(*exchanges, log=log, seconds=seconds).faults
    assert any(found.startswith(fault) for found in faults) if fault else faults == []


def test_a_title_is_not_the_turn_that_is_stopped() -> None:
    title = exchange(3, STREAM, {"role": "user", "content": f"A title, please: {LONG_PROMPT}"})
    assert seen(CALL, ANSWER, TURN, title).log_line is not None
