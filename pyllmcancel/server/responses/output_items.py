"""One item of a response while it is generated: the events of its stream, and the finished item.

Each yields the types of events with their own fields; `output` adds what all of them have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_core import from_json

from pyllmcancel.server.responses.custom_input import CustomInput
from pyllmcancel.server.responses.input_items import sealed

if TYPE_CHECKING:
    from pyllmcancel.server.responses.answer import (
        ItemStatus,
        OutputCustomCall,
        OutputFunctionCall,
        OutputItem,
        OutputMessage,
        OutputReasoning,
        OutputSearchCall,
        OutputText,
        OutputTokenLogprob,
        ReasoningText,
    )
    from pyllmcancel.server.responses.tools import Called

EventFields = tuple[str, dict[str, Any]]  # an event's type, and the fields that only its kind has


class OpenItem(Protocol):
    """An item that is not complete."""

    def begin(self) -> Iterator[EventFields]:
        """Iterate over the events after the one that the item was added."""

    def feed(self, text: str, logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]: ...

    def end(self) -> Iterator[EventFields]:
        """Iterate over the events before the one that the item is done."""

    def item(self, status: ItemStatus) -> OutputItem: ...


class OpenMessage:
    prefix = "msg"

    def __init__(self, item_id: str) -> None:
        self._id = item_id
        self._texts: list[str] = []
        self._logprobs: list[OutputTokenLogprob] = []
        self._begun = False

    def begin(self) -> Iterator[EventFields]:
        self._begun = True
        yield "response.content_part.added", {"content_index": 0, "part": part_of("", [])}

    def feed(self, text: str, logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        self._logprobs += logprobs
        yield "response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": list(logprobs)}

    def end(self) -> Iterator[EventFields]:
        text = {"content_index": 0, "text": "".join(self._texts), "logprobs": self._logprobs}
        yield "response.output_text.done", text
        yield "response.content_part.done", {"content_index": 0, "part": part_of("".join(self._texts), self._logprobs)}

    def item(self, status: ItemStatus) -> OutputMessage:
        content = [part_of("".join(self._texts), self._logprobs)] if self._begun else []
        return {"type": "message", "id": self._id, "status": status, "role": "assistant", "content": content}


class OpenReasoning:
    prefix = "rs"

    def __init__(self, item_id: str, *, encrypts: bool) -> None:
        self._id = item_id
        self._encrypts = encrypts
        self._texts: list[str] = []
        self._begun = False

    def begin(self) -> Iterator[EventFields]:
        self._begun = True
        yield "response.content_part.added", {"content_index": 0, "part": thought("")}

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._texts.append(text)
        yield "response.reasoning_text.delta", {"content_index": 0, "delta": text}

    def end(self) -> Iterator[EventFields]:
        yield "response.reasoning_text.done", {"content_index": 0, "text": "".join(self._texts)}
        yield "response.content_part.done", {"content_index": 0, "part": thought("".join(self._texts))}

    def item(self, status: ItemStatus) -> OutputReasoning:
        content = [thought("".join(self._texts))] if self._begun else []
        item: OutputReasoning = {
            "type": "reasoning",
            "id": self._id,
            "status": status,
            "summary": [],
            "content": content,
        }
        if self._encrypts:
            item["encrypted_content"] = sealed("".join(self._texts))
        return item


class OpenCall:
    prefix = "fc"

    def __init__(self, item_id: str, call_id: str, tool: Called) -> None:
        self._id = item_id
        self._call_id = call_id
        self._tool = tool
        self._arguments: list[str] = []

    def begin(self) -> Iterator[EventFields]:
        yield from ()

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._arguments.append(text)
        yield "response.function_call_arguments.delta", {"delta": text}

    def end(self) -> Iterator[EventFields]:
        done = {"name": self._tool.name, "arguments": "".join(self._arguments)}
        yield "response.function_call_arguments.done", done

    def item(self, status: ItemStatus) -> OutputFunctionCall:
        item: OutputFunctionCall = {
            "type": "function_call",
            "id": self._id,
            "status": status,
            "call_id": self._call_id,
            "name": self._tool.name,
            "arguments": "".join(self._arguments),
        }
        if self._tool.namespace is not None:
            item["namespace"] = self._tool.namespace
        return item


class OpenCustomCall:
    """An open call of a custom tool. The model writes the input as the one text in a function's arguments; the input is
    sent as soon as it can be read.
    """

    prefix = "ctc"

    def __init__(self, item_id: str, call_id: str, tool: Called) -> None:
        self._id = item_id
        self._call_id = call_id
        self._tool = tool
        self._input = CustomInput()

    def begin(self) -> Iterator[EventFields]:
        yield from ()

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        yield from self._delta(self._input.feed(text))

    def end(self) -> Iterator[EventFields]:
        yield from self._delta(self._input.finish())
        yield "response.custom_tool_call_input.done", {"input": self._input.told}

    def _delta(self, text: str) -> Iterator[EventFields]:
        if text:
            yield "response.custom_tool_call_input.delta", {"delta": text}

    def item(self, status: ItemStatus) -> OutputCustomCall:
        item: OutputCustomCall = {
            "type": "custom_tool_call",
            "id": self._id,
            "status": status,
            "call_id": self._call_id,
            "name": self._tool.name,
            "input": self._input.told,
        }
        if self._tool.namespace is not None:
            item["namespace"] = self._tool.namespace
        return item


class OpenSearch:
    """An open call of the client's search for tools, whose arguments are sent when the call is complete."""

    prefix = "tsc"

    def __init__(self, item_id: str, call_id: str) -> None:
        self._id = item_id
        self._call_id = call_id
        self._arguments: list[str] = []

    def begin(self) -> Iterator[EventFields]:
        yield from ()

    def feed(self, text: str, _logprobs: Sequence[OutputTokenLogprob] = ()) -> Iterator[EventFields]:
        self._arguments.append(text)
        yield from ()

    def end(self) -> Iterator[EventFields]:
        yield from ()

    def item(self, status: ItemStatus) -> OutputSearchCall:
        return {
            "type": "tool_search_call",
            "id": self._id,
            "status": status,
            "call_id": self._call_id,
            "execution": "client",
            "arguments": search_arguments("".join(self._arguments)) if status == "completed" else {},
        }


def search_arguments(text: str) -> dict[str, Any]:
    """Return the arguments as an object, even if the model wrote none."""
    try:
        found = from_json(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"INVALID_JSON": text}


def part_of(text: str, logprobs: list[OutputTokenLogprob]) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def thought(text: str) -> ReasoningText:
    return {"type": "reasoning_text", "text": text}
