"""One item of a response while it is generated: the events of its stream, and the finished item.

Each yields the types of events with their own fields; `output` adds what all of them have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic_core import from_json

from pyllmcancel.server.responses.custom_input import CustomInput
from pyllmcancel.server.responses.input_items import sealed

if TYPE_CHECKING:
    from pyllmcancel.server.responses.answer import (
        ItemStatus,
        OutputItem,
        OutputMessage,
        OutputReasoning,
        OutputTokenLogprob,
    )
    from pyllmcancel.server.responses.tools import Called

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

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        yield from ()

    def end(self) -> Iterator[EventFields]:
        """Iterate over the events before the one that the item is done."""
        yield from ()

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem: ...


class OpenText(OpenItem):
    """An item whose content is one part, a text of this kind."""

    kind: ClassVar[str]

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self._begun = False

    def begin(self) -> Iterator[EventFields]:
        self._begun = True
        yield "response.content_part.added", {"content_index": 0, "part": self._part()}

    def feed(self, text: str, logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        yield f"response.{self.kind}.delta", {"content_index": 0, "delta": text}

    def end(self) -> Iterator[EventFields]:
        yield f"response.{self.kind}.done", {"content_index": 0, "text": self._text}
        yield "response.content_part.done", {"content_index": 0, "part": self._part()}

    def _part(self) -> Any:
        return {"type": self.kind, "text": self._text}

    def _content(self) -> list[Any]:
        return [self._part()] if self._begun else []


class OpenReasoning(OpenText):
    prefix = "rs"
    kind = "reasoning_text"

    def __init__(self, item_id: str, *, encrypts: bool) -> None:
        super().__init__(item_id)
        self._encrypts = encrypts

    def item(self, status: ItemStatus) -> OutputReasoning:
        item: OutputReasoning = {
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

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self._logprobs: list[OutputTokenLogprob] = []

    def feed(self, text: str, logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._logprobs += logprobs
        for kind, fields in super().feed(text):
            yield kind, fields | {"logprobs": list(logprobs)}

    def end(self) -> Iterator[EventFields]:
        done, part = super().end()
        yield done[0], done[1] | {"logprobs": self._logprobs}
        yield part

    def _part(self) -> Any:
        return super()._part() | {"annotations": [], "logprobs": list(self._logprobs)}

    def item(self, status: ItemStatus) -> OutputMessage:
        content = self._content()
        return {"type": "message", "id": self._id, "status": status, "role": "assistant", "content": content}


class OpenCall(OpenItem):
    prefix = "fc"

    def __init__(self, item_id: str, call_id: str, tool: Called) -> None:
        super().__init__(item_id)
        self._call_id = call_id
        self._tool = tool

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        yield "response.function_call_arguments.delta", {"delta": text}

    def end(self) -> Iterator[EventFields]:
        yield "response.function_call_arguments.done", {"name": self._tool.name, "arguments": self._text}

    def item(self, status: ItemStatus) -> OutputItem:
        return self._call("function_call", status, name=self._tool.name, arguments=self._text)

    def _call(self, kind: str, status: ItemStatus, **fields: Any) -> OutputItem:
        item = {"type": kind, "id": self._id, "status": status, "call_id": self._call_id, **fields}
        if self._tool.namespace is not None:
            item["namespace"] = self._tool.namespace
        return cast("OutputItem", item)


class OpenCustomCall(OpenCall):
    """An open call of a custom tool. The model writes the input as the one text in a function's arguments; the input is
    sent as soon as it can be read.
    """

    prefix = "ctc"

    def __init__(self, item_id: str, call_id: str, tool: Called) -> None:
        super().__init__(item_id, call_id, tool)
        self._input = CustomInput()

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        yield from self._delta(self._input.feed(text))

    def end(self) -> Iterator[EventFields]:
        yield from self._delta(self._input.finish())
        yield "response.custom_tool_call_input.done", {"input": self._input.text}

    def _delta(self, text: str) -> Iterator[EventFields]:
        if text:
            yield "response.custom_tool_call_input.delta", {"delta": text}

    def item(self, status: ItemStatus) -> OutputItem:
        return self._call("custom_tool_call", status, name=self._tool.name, input=self._input.text)


class OpenSearch(OpenCall):
    """An open call of the client's search for tools, whose arguments are sent when the call is complete."""

    prefix = "tsc"

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        yield from ()

    def end(self) -> Iterator[EventFields]:
        yield from ()

    def item(self, status: ItemStatus) -> OutputItem:
        arguments = search_arguments(self._text) if status == "completed" else {}
        return self._call("tool_search_call", status, execution="client", arguments=arguments)


def search_arguments(text: str) -> dict[str, Any]:
    """Return the arguments as an object, even if the model wrote none."""
    try:
        found = from_json(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}
