"""Answers of OpenAI-compatible servers, whole or streamed, in the shapes that servers really send."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from typing import Any

from pyllmcancel.sse import BrokenFeedError, EventDecoder, ServerEvent

FINISH_REASONS = ("stop", "length", "tool_calls", "function_call", "content_filter")


class ErrorKind(StrEnum):
    """The names under which failures are counted, with their meaning; an HTTP error is ``http_`` and its status."""

    text: str

    def __new__(cls, name: str, text: str) -> ErrorKind:
        kind = str.__new__(cls, name)
        kind._value_, kind.text = name, text
        return kind

    CONNECT_FAILED = "connect_failed", "no connection could be made"
    DISCONNECTED = "disconnected", "the connection was closed before any answer"
    BROKEN_ANSWER = "broken_answer", "the connection ended in the middle of an answer"
    NO_DONE = "no_done", "a stream ended properly, but without [DONE]"
    NO_FINISH_REASON = "no_finish_reason", "an answer looked complete, but no choice had a finish reason"
    BAD_ANSWER = "bad_answer", "an answer that is not JSON, or not of the expected shape"
    ERROR_EVENT = "error_event", "an error event in a stream"
    SUPERSEDED = "superseded", "cancelled by the server for a newer request of the same key"
    TIMEOUT = "timeout", "no answer within --timeout"
    PROTOCOL_ERROR = "protocol_error", "bytes that are not HTTP"


class ExchangeError(Exception):
    """A request failed; `kind` is the name under which it is counted."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind
        self.detail = detail


class AnswerReader:
    """Reads one answer."""

    def __init__(self, status: int, content_type: str) -> None:
        self.status = status
        self.token_at: list[float] = []  # of each event with text: one per token, except for parts of a character
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] = {}
        self.tokens: list[int] = []  # of the choices, from servers that send them
        self.timings: dict[str, Any] = {}  # in the answer, or in its last event that has some
        self._streams = content_type.startswith("text/event-stream") and status == 200
        self._content = bytearray()
        self._events = EventDecoder()
        self._done = False
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def text_sha256(self) -> str:
        return hashlib.sha256(self.text.encode(errors="replace")).hexdigest()

    def feed(self, data: bytes, at: float) -> None:
        """Take a piece of the body that came `at` this time; ExchangeError on an error event."""
        if not self._streams:
            self._content += data
            return
        for event in self._decoded(data):
            if event.data == "[DONE]":
                self._done = True
                continue
            payload = parse_object(event.data)
            if event.name == "error" or payload.get("error") is not None:
                raise error_of(payload, ErrorKind.ERROR_EVENT)
            self._take(payload, at)

    def _decoded(self, data: bytes) -> list[ServerEvent]:
        try:
            return self._events.feed(data)
        except BrokenFeedError as error:
            raise ExchangeError(ErrorKind.BAD_ANSWER, str(error)) from error

    def finish(self) -> None:
        """Check the complete body; ExchangeError if it is not a proper answer."""
        if self.status != 200:
            raise self._http_error()
        if not self._streams:
            self._take(parse_object(self._content), None)
        elif not self._done:
            raise ExchangeError(ErrorKind.NO_DONE)
        if self.finish_reason not in FINISH_REASONS:
            raise ExchangeError(ErrorKind.NO_FINISH_REASON, f"finish_reason {self.finish_reason!r}")

    def _take(self, payload: dict[str, Any], at: float | None) -> None:
        self.usage = payload.get("usage") or self.usage
        self.timings = payload.get("timings") or self.timings
        choices = payload.get("choices") or ()
        for choice in choices:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.tokens += choice.get("tokens") or ()
        text = "".join(map(text_of, choices))
        self._texts.append(text)
        if text and at is not None:
            self.token_at.append(at)

    def _http_error(self) -> ExchangeError:
        kind = f"http_{self.status}"
        try:
            return error_of(parse_object(self._content), kind)
        except ExchangeError:
            return ExchangeError(kind, self._content[:200].decode(errors="replace"))


def text_of(choice: dict[str, Any]) -> str:
    """Return a completion's text, or the content, the reasoning and the tool calls of a message or a delta."""
    said = choice.get("delta") or choice.get("message") or {}
    parts = [choice.get("text"), said.get("content"), said.get("reasoning_content")]
    calls = [(call.get("function") or {}).get("arguments") for call in said.get("tool_calls") or ()]
    return "".join(part for part in parts + calls if isinstance(part, str))


def parse_object(text: str | bytearray) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ExchangeError(ErrorKind.BAD_ANSWER, f"not JSON: {text[:80]!r}") from error
    if not isinstance(value, dict):
        raise ExchangeError(ErrorKind.BAD_ANSWER, f"not an object: {value!r:.80}")
    return value


def error_of(payload: dict[str, Any], kind: str) -> ExchangeError:
    """Return the failure that an OpenAI error body or event reports."""
    error = payload.get("error", payload)
    if not isinstance(error, dict):
        return ExchangeError(kind, str(error))
    detail = f"{error.get('code') or error.get('type') or ''} {error.get('message') or ''}".strip()
    superseded = "superseded" in (error.get("code"), error.get("reason"))  # `reason` is llama-server's field
    return ExchangeError(ErrorKind.SUPERSEDED if superseded else kind, detail)
