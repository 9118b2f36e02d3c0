"""The format of the log: one line per record, as text or as JSON.

The facts of a record are given to its logger as `extra`, and in no other way: ``extra={"request_id": …}`` for a record
about a request. A client's text can neither break a line nor control a terminal: text escapes control characters, and
JSON is ASCII.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from types import TracebackType

FORMATS = ("text", "json")
# C0 and C1 end lines and begin terminal escapes. The others separate lines and paragraphs, change the direction of
# text, or are halves of characters, which cannot be encoded.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# The attributes that every record has, and the one that uvicorn adds for colours.
NO_FACTS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}

logger = logging.getLogger("pyllmcancel.serve")


def set_up(form: str, level: str) -> None:
    """Log to stderr in this format, llama.cpp's lines, warnings and uncaught errors included."""
    formatter = JsonFormatter() if form == "json" else TextFormatter()
    handler = Handler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # httpx logs every address. The addresses of the hub's files are signed: whoever has one may read the file.
    for library in ("httpx", "httpx2"):
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    sys.excepthook = log_uncaught
    threading.excepthook = log_uncaught_of_thread
    # native/platform/log.cpp reads the level there, because llama.cpp logs during a computation, without the GIL.
    os.environ["PYLLMCANCEL_LOG_FORMAT"] = form


def log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None, thread: str = "the main thread"
) -> None:
    """Log an error that has ended a thread, in one line; Python's own hook writes several."""
    logger.critical("%s ended with an error", thread, exc_info=(kind, error, traceback))


def log_uncaught_of_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        name = "a thread" if args.thread is None else args.thread.name
        log_uncaught(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback, name)


def escaped(text: str) -> str:
    """Return `text` in one line, without effect on a terminal."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class Handler(logging.StreamHandler[TextIO]):
    """Stamps a record when it writes it, under the lock, so that lines are in the order of their times."""

    def emit(self, record: logging.LogRecord) -> None:
        record.created = time.time()
        record.msecs = int(record.created % 1 * 1000)
        super().emit(record)


class TextFormatter(logging.Formatter):
    """The time, level, logger and message, and the request's id if the message does not name it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        request_id = getattr(record, "request_id", None)
        named = request_id is None or request_id in record.message
        message = record.message if named else f"request {request_id}: {record.message}"
        return f"{record.asctime}.{int(record.msecs):03d} {record.levelname:<7} {record.name}: {message}"

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class JsonFormatter(logging.Formatter):
    """An object: time (ISO 8601, with the zone), level, logger, message, the record's facts, and exception."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in NO_FACTS and name not in fields and value is not None:
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        try:
            line = json.dumps(fields, default=str, allow_nan=False)
        except (TypeError, ValueError):  # a library's fact may not be JSON; that must not lose the line
            line = json.dumps({name: str(value) for name, value in fields.items()})
        return line.replace("\x7f", "\\u007f")
