"""A model that does as it is told: it calls a tool some times, then says that it is done. In the words of each API."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from tests.clients.steering import CALLS

Body = dict[str, Any]
Event = tuple[str, dict[str, Any]]

CALLS_EACH = 4  # before it answers to what its user has asked
ANSWER = "It works."
SEARCH = "ToolSearch"  # Claude Code's tool that finds others
DEFERRED = re.compile(r"deferred tools are now available.*\n(\w+)")


class ScriptedModel:
    """One conversation with one client; what clients ask beside it, without tools, gets the answer at once.

    Attributes
    ----------
    n_turns
        Answers within the conversation so far.
    """

    def __init__(self) -> None:
        self.n_turns = 0
        self._ids = count(1)

    def answer(self, path: str, body: Body) -> bytes:
        """A whole stream of events."""
        call = None
        if body.get("tools"):
            if self.n_turns % (CALLS_EACH + 1) < CALLS_EACH:
                call = self._next_call(body)
            self.n_turns += 1
        events = {"messages": message_events, "responses": response_events}.get(path.rsplit("/", 1)[-1], chat_events)
        return b"".join(frame(*event) for event in events(f"{next(self._ids):09}", call))

    def _next_call(self, body: Body) -> tuple[str, Body]:
        tools = [tool.get("function", tool) for tool in body["tools"]]
        names = [tool["name"] for tool in tools if "name" in tool]
        if SEARCH in names and self.n_turns == 0:
            return SEARCH, {"query": f"select:{deferred(body)}", "max_results": 1}
        name = next(name for name in names if name in CALLS)
        return name, dict(CALLS[name])


def deferred(body: Body) -> str:
    """A tool that the client says can be searched for."""
    told = json.dumps(body["messages"]).replace("\\n", "\n")
    found = DEFERRED.search(told)
    if found is None:
        raise ValueError("the client tells of no tools that can be searched for")
    return found[1]


def frame(name: str, data: dict[str, Any] | str) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def message_events(number: str, call: tuple[str, Body] | None) -> Iterator[Event]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    yield named(
        {"type": "message_start", "message": message | {"stop_reason": None, "stop_sequence": None, "usage": usage}}
    )
    if call is None:
        block: Body = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": ANSWER}
    else:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": call[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    yield named({"type": "content_block_start", "index": 0, "content_block": block})
    yield named({"type": "content_block_delta", "index": 0, "delta": delta})
    yield named({"type": "content_block_stop", "index": 0})
    reason = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    yield named({"type": "message_delta", "delta": reason, "usage": usage})
    yield named({"type": "message_stop"})


def response_events(number: str, call: tuple[str, Body] | None) -> Iterator[Event]:
    item: dict[str, Any] = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
    item |= {"content": [{"type": "output_text", "text": ANSWER, "annotations": []}]}
    if call is not None:
        item = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}", "status": "completed"}
        item |= {"name": call[0], "arguments": json.dumps(call[1])}
    response = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": []}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    yield named({"type": "response.created", "response": response})
    yield named({"type": "response.output_item.done", "output_index": 0, "item": item})
    done = response | {"status": "completed", "output": [item], "usage": usage}
    yield named({"type": "response.completed", "response": done})


def chat_events(number: str, call: tuple[str, Body] | None) -> Iterable[tuple[str, Any]]:
    delta: dict[str, Any] = {"role": "assistant", "content": ANSWER}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        delta = {"role": "assistant", "tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function"}]}
        delta["tool_calls"][0]["function"] = function
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    yield "", head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield "", head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}]}
    yield "", "[DONE]"


def named(data: dict[str, Any]) -> Event:
    return str(data["type"]), data
