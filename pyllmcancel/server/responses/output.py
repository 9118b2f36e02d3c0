"""A response while it is generated: parts in, items and events out.

The events depend only on the parts, so a stream can be repeated, with the same numbers, from the parts that were kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.events import Delta, FinishReason
from pyllmcancel.server.chat.answer_parser import Arguments, CallBegins, Content, Part, Reasoning
from pyllmcancel.server.errors.shapes import ErrorFacts
from pyllmcancel.server.responses import answer as wire
from pyllmcancel.server.responses import output_items as items
from pyllmcancel.server.responses.tools import ToolTable
from pyllmcancel.server.wire.fields import stop_details

Events = Iterator[wire.ResponseEvent]
# Somebody wanted these to end; the other reasons are the server's.
WANTED = (CancelReason.EXPLICIT, CancelReason.SUPERSEDED, CancelReason.DISCONNECT, CancelReason.STALLED)
CALLS = {"function": items.OpenCall, "custom": items.OpenCustomCall, "tool_search": items.OpenSearch}
TERMINAL = {"completed": "response.completed", "incomplete": "response.incomplete"}


@dataclass(frozen=True, slots=True)
class End:
    """The end of a response."""

    status: wire.Status
    usage: wire.ResponseUsage | None
    at: int | None = None  # the time of the end, in seconds since the epoch, if the response is complete
    error: wire.ResponseError | None = None
    incomplete: wire.IncompleteDetails | None = None
    cause: ErrorFacts | None = None  # if the response broke off


class Output:
    """Writes one response."""

    def __init__(self, head: wire.ResponseHead, tools: ToolTable, *, encrypts: bool) -> None:
        self._head = head
        self._tools = tools
        self._encrypts = encrypts
        self.response_id = head["id"]
        self._request_id = self.response_id.removeprefix(wire.RESPONSE_PREFIX)
        self._n_events = 0
        self._waits = False  # True until the start of a response in the background is reported
        self._done: list[wire.OutputItem] = []
        self._open: items.OpenItem | None = None
        self._open_id = ""
        self._open_number = 0

    # -- what changes -------------------------------------------------------------------------------------------------

    def begin(self, *, queued: bool = False) -> Events:
        """Report the beginning. The start of a queued response is reported with its first part, or its end."""
        first: wire.Status = "queued" if queued else "in_progress"
        yield self._event("response.created", response=self.response(first))
        yield self._event(f"response.{first}", response=self.response(first))
        self._waits = queued

    def _start(self) -> Events:
        if self._waits:
            self._waits = False
            yield self._event("response.in_progress", response=self.response("in_progress"))

    def feed(self, parts: Iterable[Part], logprobs: Sequence[wire.OutputTokenLogprob] = ()) -> Events:
        """Feed parts; `logprobs` are of the content among them."""
        for part in parts:
            yield from self._start()
            match part:
                case Content(text=text):
                    if not isinstance(self._open, items.OpenMessage):
                        yield from self._begin_item(items.OpenMessage)
                    yield from self._events(self._opened.feed(text, logprobs))
                    logprobs = ()
                case Reasoning(text=text):
                    if not isinstance(self._open, items.OpenReasoning):
                        yield from self._begin_item(items.OpenReasoning, encrypts=self._encrypts)
                    yield from self._events(self._opened.feed(text))
                case CallBegins(name=name, id=call_id):
                    tool = self._tools.called(name)
                    yield from self._begin_item(CALLS[tool.kind], call_id, tool)
                case Arguments(text=text):
                    yield from self._events(self._opened.feed(text))

    def end_items(self, end: End) -> Events:
        """Report the end of the open item; `end` is to follow."""
        yield from self._start()
        if not self._done and self._open is None and end.status in TERMINAL:
            # For an answer without text: clients look for a message.
            yield from self._begin_item(items.OpenMessage)
        yield from self._end_item("completed" if end.status == "completed" else "incomplete")

    def end(self, end: End) -> Events:
        """Report the end, which is the last event; the items have ended."""
        if end.cause is not None:
            yield self._event("error", code=end.cause.code, message=end.cause.message, param=end.cause.param)
        kind = TERMINAL.get(end.status, "response.failed")
        yield self._event(kind, response=self.response(end.status, end))

    def take_back(self, events: Sequence[wire.ResponseEvent]) -> None:
        """Take back the last events, which were not sent: others get their numbers."""
        self._n_events -= len(events)

    # -- how it stands ------------------------------------------------------------------------------------------------

    def response(self, status: wire.Status, end: End | None = None) -> wire.ResponseAnswer:
        """Return the response so far. A thread may meanwhile report the end: an item is there once, open or done."""
        output, opened = list(self._done), self._open
        if opened is not None and self._open_number == len(output):
            output.append(opened.item("in_progress"))
        return {
            **self._head,
            "status": status,
            "completed_at": end.at if end is not None and status == "completed" else None,
            "error": None if end is None else end.error,
            "incomplete_details": end.incomplete if end is not None else None,
            "output": output,
            "usage": None if end is None else end.usage,
        }

    # -- items --------------------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> items.OpenItem:
        assert self._open is not None
        return self._open

    def _begin_item(self, kind: Any, *given: Any, **more: Any) -> Events:
        """Begin an item of this class. Its id names the response that has it."""
        yield from self._end_item("completed")
        self._open_number = len(self._done)
        self._open_id = f"{kind.prefix}_{self._request_id}_{self._open_number}"
        self._open = opened = kind(self._open_id, *given, **more)
        added = opened.item("in_progress")
        yield self._event("response.output_item.added", output_index=self._open_number, item=added)
        yield from self._events(opened.begin())

    def _end_item(self, status: wire.ItemStatus) -> Events:
        if self._open is None:
            return
        yield from self._events(self._open.end())
        done = self._open.item(status)
        yield self._event("response.output_item.done", output_index=len(self._done), item=done)
        self._done.append(done)
        self._open = None

    def _events(self, found: Iterable[items.EventFields]) -> Events:
        for kind, fields in found:
            yield self._event(kind, item_id=self._open_id, output_index=len(self._done), **fields)

    def _event(self, kind: str, **fields: Any) -> wire.ResponseEvent:
        event: wire.ResponseEvent = {"type": kind, "sequence_number": self._n_events, **fields}  # type: ignore[typeddict-item]
        self._n_events += 1
        return event


def ended(last: Delta | None, usage: wire.ResponseUsage) -> End:
    """Return the end of an answer that was not broken off, by its last delta."""
    if last is not None and last.finish_reason is FinishReason.LENGTH:
        return End("incomplete", usage, incomplete={"reason": "max_output_tokens", **stop_details(last)})
    return End("completed", usage, int(time.time()))


def broken_off(facts: ErrorFacts, n_reasoning: int) -> End:
    """Return the end of an answer that a cancel or a failure has cut."""
    usage = None if facts.usage is None else wire.response_usage(facts.usage, n_reasoning)
    code = "server_error" if facts.status >= 499 else "invalid_prompt"
    status: wire.Status = "cancelled" if facts.code in WANTED else "failed"
    return End(status, usage, error={"code": code, "message": facts.message}, cause=facts)
