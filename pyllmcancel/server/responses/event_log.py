"""The log of a response in the background, from which its events can be sent again, each with its number.

The model's output is kept as it was generated; the events follow from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter

from pyllmcancel.server.chat.parts import Arguments, CallBegins, Content, Part, Reasoning
from pyllmcancel.server.following import Change
from pyllmcancel.server.responses.answer import ResponseHead
from pyllmcancel.server.responses.output import Cause, End, Output
from pyllmcancel.server.responses.reading import Told, merged
from pyllmcancel.server.responses.storage.rows import checked
from pyllmcancel.server.responses.tools import Tool, ToolTable

if TYPE_CHECKING:
    from pyllmcancel.server.responses.answer import ResponseAnswer, ResponseEvent
    from pyllmcancel.server.responses.storage.rows import Kept

TOOLS: TypeAdapter[list[Any]] = TypeAdapter(list[Tool])


@dataclass(frozen=True, slots=True)
class Head:
    """The data that a response's events depend on, besides the model's output."""

    response: ResponseHead
    tools: ToolTable
    encrypts: bool

    def output(self) -> Output:
        return Output(self.response, self.tools, encrypts=self.encrypts)


class EventLog:
    """The model's output so far, and the end. Used in the event loop only.

    Attributes
    ----------
    told
        The entries so far, at most one per token.
    end
        Set after the response has ended and its end is stored.
    changed
        Tells of new entries, and of the end.
    """

    def __init__(self, head: Head, told: list[Told] | None = None, end: End | None = None) -> None:
        self.head = head
        self.told = told or []
        self.end = end
        self.changed = Change()

    def add(self, told: Iterable[Told]) -> None:
        self.told += told
        self.changed.tell()

    def finish(self, end: End) -> None:
        self.end = end
        self.changed.tell()

    def response(self, end: End) -> ResponseAnswer:
        """Return the response with this end."""
        output = self.head.output()
        for told in merged(self.told):
            list(output.feed(told.parts, told.logprobs))
        list(output.end_items(end))
        return output.response(end.status, end)


class Telling:
    """Makes the events of a response in the background, once, as far as it has been generated."""

    def __init__(self, head: Head) -> None:
        self._output = head.output()
        self._runs = False

    def opening(self) -> Iterator[ResponseEvent]:
        return self._output.begin(queued=True)

    def more(self, told: Iterable[Told]) -> Iterator[ResponseEvent]:
        for one in told:
            yield from self._run()
            yield from self._output.feed(one.parts, one.logprobs)

    def end(self, end: End) -> Iterator[ResponseEvent]:
        yield from self._run()
        yield from self._output.end_items(end)
        yield from self._output.end(end)

    def _run(self) -> Iterator[ResponseEvent]:
        if not self._runs:
            self._runs = True
            yield from self._output.run()


def written(head: Head, told: Iterable[Told], end: End) -> str:
    """Return the log for the store; the stored response has all other data."""
    cause = None if end.cause is None else [end.cause.code, end.cause.message, end.cause.param]
    # Entries are encoded one by one: while one is encoded, no other thread of Python runs.
    entries = ",".join([json.dumps(_written(one), separators=(",", ":")) for one in told])
    return f'{{"encrypts": {json.dumps(head.encrypts)}, "cause": {json.dumps(cause)}, "told": [{entries}]}}'


def read(kept: Kept, response_id: str) -> tuple[Head, list[Told], End]:
    """Return the log of a response that has ended, unless it is damaged; a response that ended with its server has
    none.
    """
    with checked(response_id):
        return _read_log(kept)


def _read_log(kept: Kept) -> tuple[Head, list[Told], End]:
    response = json.loads(kept.response)
    error = response["error"]
    lost = {"encrypts": False, "told": [], "cause": None if error is None else [error["code"], error["message"], None]}
    log: dict[str, Any] = json.loads(kept.log) if kept.log else lost
    fields = cast("ResponseHead", {name: response[name] for name in ResponseHead.__annotations__})
    head = Head(fields, ToolTable.of(TOOLS.validate_python(response["tools"])), log["encrypts"])
    cause = None if log["cause"] is None else Cause(*log["cause"])
    end = End(response["status"], response["usage"], response["completed_at"], error, cause)
    return head, [_read(one) for one in log["told"]], end


def _written(told: Told) -> list[Any]:
    parts = [_part_written(part) for part in told.parts]
    return [parts, told.logprobs] if told.logprobs else [parts]


def _read(entry: list[Any]) -> Told:
    return Told([_part_read(*part) for part in entry[0]], entry[1] if len(entry) > 1 else [])


def _part_written(part: Part) -> list[Any]:
    match part:
        case Content(text=text):
            return ["c", text]
        case Reasoning(text=text):
            return ["r", text]
        case CallBegins(index=index, name=name, id=call_id):
            return ["b", index, name, call_id]
        case Arguments(index=index, text=text):
            return ["a", index, text]


def _part_read(kind: str, *values: Any) -> Part:
    if not all(isinstance(value, str | int) for value in values):
        raise TypeError
    kinds = {"c": Content, "r": Reasoning, "b": CallBegins, "a": Arguments}
    return cast("Part", kinds[kind](*values))
