"""A record is one line, whatever is in it, as text and as JSON."""

import io
import json
import logging
import sys
from datetime import datetime
from typing import Any

import pytest

from pyllmcancel.cli.logs import Handler, JsonFormatter, TextFormatter

FORMATTERS = {"text": TextFormatter(), "json": JsonFormatter()}
HOSTILE = [
    "two\nlines",
    "a\r\n12:00:00.000 INFO    pyllmcancel.engine: request forged finished",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "next\x85line, \u2028separator, \u2029paragraph",
    "\u202egnp.exe",
    "half a character: \ud800",
    "\x00\x7f",
    '", "level": "critical',
]


def record(message: str, *args: object, **facts: Any) -> logging.LogRecord:
    return logging.getLogger("test").makeRecord("test", logging.INFO, "file.py", 1, message, args, None, extra=facts)


def failed(message: str) -> logging.LogRecord:
    try:
        raise ValueError(message)
    except ValueError:
        return logging.getLogger("test").makeRecord("test", logging.ERROR, "f.py", 1, "failed", (), sys.exc_info())


def check_line(line: str) -> None:
    assert line.isprintable()
    assert line.encode("utf-8")
    assert "\u202e" not in line


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", FORMATTERS)
def test_no_text_breaks_a_line_or_commands_a_terminal(form: str, text: str) -> None:
    for each in (record("session %s", text), record("said", session=text, request_id=text), failed(text)):
        check_line(FORMATTERS[form].format(each))


@pytest.mark.parametrize("text", HOSTILE)
def test_json_says_exactly_what_was_logged(text: str) -> None:
    read = json.loads(FORMATTERS["json"].format(record("session %s", text, session=text)))
    assert (read["message"], read["session"]) == (f"session {text}", text)


def test_json_has_the_time_with_its_zone_and_the_facts_as_fields() -> None:
    each = record("cancelled", request_id="r1", cancel_latency_ms=1.5, reason=None)
    read = json.loads(FORMATTERS["json"].format(each))
    time = datetime.fromisoformat(read.pop("time"))
    assert time.tzinfo is not None
    assert time.timestamp() == pytest.approx(each.created, abs=0.001)
    assert read == {
        "level": "info",
        "logger": "test",
        "message": "cancelled",
        "request_id": "r1",
        "cancel_latency_ms": 1.5,
    }


def test_lines_are_in_the_order_of_their_times() -> None:
    written = io.StringIO()
    handler = Handler(written)
    handler.setFormatter(JsonFormatter())
    for made_at in (2.0, 1.0):  # by two threads, of which the second one was faster
        handler.handle(logging.makeLogRecord({"msg": "a line", "created": made_at}))
    times = [json.loads(line)["time"] for line in written.getvalue().splitlines()]
    assert times == sorted(times)


def test_a_fact_takes_the_place_of_no_field_of_ours() -> None:
    read = json.loads(FORMATTERS["json"].format(record("true", level="forged", time="forged", logger="forged")))
    assert (read["level"], read["logger"], read["time"] == "forged") == ("info", "test", False)


def test_an_exception_is_one_field_and_in_text_part_of_the_line() -> None:
    read = json.loads(FORMATTERS["json"].format(failed("broken")))
    assert read["exception"].startswith("Traceback (most recent call last):\n")
    assert read["exception"].endswith("ValueError: broken")
    text = FORMATTERS["text"].format(failed("broken"))
    assert text.endswith("ValueError: broken")
    assert "failed\\nTraceback" in text


@pytest.mark.parametrize("fact", [float("nan"), {1: object(), (): 2}, {"deep": object()}, b"bytes"])
def test_what_json_has_no_word_for_is_written_all_the_same(fact: object) -> None:
    assert "fact" in json.loads(FORMATTERS["json"].format(record("said", fact=fact)))


def test_a_text_line_names_the_request_once() -> None:
    assert FORMATTERS["text"].format(record("request %s ended", "r1", request_id="r1")).endswith(": request r1 ended")
    assert FORMATTERS["text"].format(record("no effect", request_id="r1")).endswith("test: request r1: no effect")
