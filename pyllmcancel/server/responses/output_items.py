"""One item of a response while it is generated: the events of its stream, and the finished item.

Each yields the types of events with their own fields; `output` adds what all of them have.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, cast

from pydantic_core import from_json

from pyllmcancel.server.responses import answer as wire
from pyllmcancel.server.responses.input_items import sealed
from pyllmcancel.server.responses.tools import Called

OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
# The parts of a JSON text that can be read by themselves: an escape is whole, and the first half of a pair waits for
# the second. No quantifier is possessive: Python 3.11.2, Debian 12's, then takes half of an escape.
READABLE = re.compile(
    r'(?:[^"\\]+|\\[^u]|\\u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}'
    r"|[dD][c-fC-F][0-9a-fA-F]{2}))*"
)


class CustomInput:
    """Takes fragments of ``{"input": "…"}``; `text` is what could be read so far."""

    def __init__(self) -> None:
        self._fragments: list[str] = []
        self._texts: list[str] = []
        self._unread = ""
        self._opened = False
        self._closed = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def feed(self, fragment: str) -> str:
        """Return the text that this fragment adds to what can be read."""
        self._fragments.append(fragment)
        if self._closed:
            return ""
        self._unread += fragment
        if not self._opened:
            opening = OPENING.match(self._unread)
            if opening is None:
                return ""
            self._opened = True
            self._unread = self._unread[opening.end() :]
        found = READABLE.match(self._unread)
        assert found is not None  # the match may be empty
        self._unread = self._unread[found.end() :]
        self._closed = self._unread.startswith('"')
        text = read(found[0])
        self._texts.append(text)
        return text

    def finish(self) -> str:
        """Return the text that is left: all arguments, as the model wrote them, if they are no such object."""
        before = self.text
        whole = input_in("".join(self._fragments))
        rest = whole.removeprefix(before) if whole.startswith(before) else ""
        self._texts.append(rest)
        return rest


def read(escaped: str) -> str:
    try:
        text: str = json.loads(f'"{escaped}"', strict=False)
    except ValueError:  # an unknown escape
        return escaped
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def input_in(arguments: str) -> str:
    try:
        found = json.loads(arguments, strict=False)
    except ValueError:
        return arguments
    text = found.get("input") if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments


EventFields = tuple[str, dict[str, Any]]  # an event's type, and the fields that only its kind has


class OpenItem(ABC):
    """An item that is not complete, and the text of it that has been generated."""

    prefix: ClassVar[str]  # of its id

    def __init__(self, item_id: str) -> None:
        self._id = item_id
        self._texts: list[str] = []

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def begin(self) -> Iterator[EventFields]:
        """Iterate over the events after the one that the item was added."""
        yield from ()

    def feed(self, text: str, _logprobs: Sequence[wire.OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        yield from ()

    def end(self) -> Iterator[EventFields]:
        """Iterate over the events before the one that the item is done."""
        yield from ()

    @abstractmethod
    def item(self, status: wire.ItemStatus) -> wire.OutputItem: ...


class OpenText(OpenItem):
    """An item whose content is one part, a text of this kind."""

    kind: ClassVar[str]

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self._begun = False
        self._logprobs: list[wire.OutputTokenLogprob] = []

    def begin(self) -> Iterator[EventFields]:
        self._begun = True
        yield "response.content_part.added", {"content_index": 0, "part": self._part()}

    def feed(self, text: str, logprobs: Sequence[wire.OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        self._logprobs += logprobs
        yield f"response.{self.kind}.delta", {"content_index": 0, "delta": text} | self._shown(logprobs)

    def end(self) -> Iterator[EventFields]:
        yield f"response.{self.kind}.done", {"content_index": 0, "text": self._text} | self._shown(self._logprobs)
        yield "response.content_part.done", {"content_index": 0, "part": self._part()}

    def _part(self) -> Any:
        return {"type": self.kind, "text": self._text}

    def _shown(self, _logprobs: Sequence[wire.OutputTokenLogprob]) -> dict[str, Any]:
        """Return the field of logprobs, if the item has it."""
        return {}

    def _content(self) -> list[Any]:
        return [self._part()] if self._begun else []


class OpenReasoning(OpenText):
    prefix = "rs"
    kind = "reasoning_text"

    def __init__(self, item_id: str, *, encrypts: bool) -> None:
        super().__init__(item_id)
        self._encrypts = encrypts

    def item(self, status: wire.ItemStatus) -> wire.OutputReasoning:
        item: wire.OutputReasoning = {
            "type": "reasoning",
            "id": self._id,
            "status": status,
            "summary": [],
            "content": self._content(),
        }
        if self._encrypts:
            item["encrypted_content"] = sealed(self._text)
        return item


class OpenMessage(OpenText):
    prefix = "msg"
    kind = "output_text"

    def _part(self) -> Any:
        return super()._part() | {"annotations": []} | self._shown(self._logprobs)

    def _shown(self, logprobs: Sequence[wire.OutputTokenLogprob]) -> dict[str, Any]:
        return {"logprobs": list(logprobs)}

    def item(self, status: wire.ItemStatus) -> wire.OutputMessage:
        content = self._content()
        return {"type": "message", "id": self._id, "status": status, "role": "assistant", "content": content}


class AnyCall(OpenItem):
    def __init__(self, item_id: str, call_id: str, tool: Called) -> None:
        super().__init__(item_id)
        self._call_id = call_id
        self._tool = tool

    def _call(self, kind: str, status: wire.ItemStatus, **fields: Any) -> wire.OutputItem:
        item = {"type": kind, "id": self._id, "status": status, "call_id": self._call_id, **fields}
        if self._tool.namespace is not None:
            item["namespace"] = self._tool.namespace
        return cast("wire.OutputItem", item)


class OpenCall(AnyCall):
    prefix = "fc"

    def feed(self, text: str, _logprobs: Sequence[wire.OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        yield "response.function_call_arguments.delta", {"delta": text}

    def end(self) -> Iterator[EventFields]:
        yield "response.function_call_arguments.done", {"name": self._tool.name, "arguments": self._text}

    def item(self, status: wire.ItemStatus) -> wire.OutputItem:
        return self._call("function_call", status, name=self._tool.name, arguments=self._text)


class OpenCustomCall(AnyCall):
    """An open call of a custom tool: the one text in a function's arguments, sent as soon as it can be read."""

    prefix = "ctc"

    def __init__(self, item_id: str, call_id: str, tool: Called) -> None:
        super().__init__(item_id, call_id, tool)
        self._input = CustomInput()

    def feed(self, text: str, _logprobs: Sequence[wire.OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        yield from self._delta(self._input.feed(text))

    def end(self) -> Iterator[EventFields]:
        yield from self._delta(self._input.finish())
        yield "response.custom_tool_call_input.done", {"input": self._input.text}

    def _delta(self, text: str) -> Iterator[EventFields]:
        if text:
            yield "response.custom_tool_call_input.delta", {"delta": text}

    def item(self, status: wire.ItemStatus) -> wire.OutputItem:
        return self._call("custom_tool_call", status, name=self._tool.name, input=self._input.text)


class OpenSearch(AnyCall):
    """An open call of the client's search for tools, whose arguments are sent when the call is complete."""

    prefix = "tsc"

    def item(self, status: wire.ItemStatus) -> wire.OutputItem:
        arguments = search_arguments(self._text) if status == "completed" else {}
        return self._call("tool_search_call", status, execution="client", arguments=arguments)


def search_arguments(text: str) -> dict[str, Any]:
    """Return the arguments as an object, even if the model wrote none."""
    try:
        found = from_json(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}
