"""Items, in the order in which they came, as the messages of a chat.

In a chat, a turn of the model is one message with its reasoning, text and calls; here each of these is an item.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.messages import ContentPart, TextPart
from pyllmcancel.server.responses import input_items as sent
from pyllmcancel.server.responses.tools import SEARCH, chat_name, custom_arguments


class Conversation:
    """Takes items, and makes messages of them. Items that cannot be read are reported to `ignore`."""

    def __init__(self, instructions: str | None, ignore: Callable[[str], None]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._ignore = ignore
        self._turn: dict[str, Any] | None = None  # the model's last turn, which later items may extend
        self._has_answered = False  # True if that turn has a text
        self._searches = set[str]()  # ids of calls of the client's search for tools
        if instructions:
            self.messages.append({"role": "system", "content": instructions})

    def add(self, items: Iterable[Any]) -> None:
        for item in items:
            match item:
                case sent.MessageItem(role="assistant"):
                    self._said(self._own_text(item))
                case sent.MessageItem(role=role):
                    self._add_message(role, item.content)
                case sent.ReasoningItem():
                    self._thought(item)
                case sent.CallItem(status="incomplete") | sent.CustomCallItem(status="incomplete"):
                    pass  # the call was cut, and its client has not made it
                case sent.CallItem():
                    self._called(item.call_id, chat_name(item.name, item.namespace), item.arguments)
                case sent.CustomCallItem():
                    self._called(item.call_id, chat_name(item.name, item.namespace), custom_arguments(item.input))
                case sent.CallOutputItem():
                    self._returned(item.call_id, item.output)
                case sent.ForeignItem(type="tool_search_call", fields={"execution": "client", "call_id": str(call_id)}):
                    self._searched(item, call_id)
                case sent.LoadedTools(call_id=str(call_id)) if call_id in self._searches:
                    self._returned(call_id, item.text)
                case sent.ForeignItem() | sent.LoadedTools():
                    self._read(item)

    def _own_text(self, item: sent.MessageItem) -> str:
        parts = [TextPart(text=item.content)] if isinstance(item.content, str) else item.content
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        if len(texts) < len(parts):
            raise InvalidRequestError("pictures and sounds are the user's, never in the model's own message", "input")
        return "".join(texts)

    def _add_message(self, role: str, content: str | list[ContentPart]) -> None:
        self._turn = None
        self.messages.append({"role": role, "content": content})

    def _said(self, text: str) -> None:
        self._append(text, fresh=self._has_answered)
        self._has_answered = True

    def _append(self, text: str, *, fresh: bool = False) -> None:
        turn = self._own_turn(fresh=fresh)
        turn["content"] = text if turn["content"] is None else f"{turn['content']}\n{text}"

    def _read(self, item: sent.ForeignItem | sent.LoadedTools) -> None:
        """Add the results of hosted tools to the model's turn, between the texts before and after them."""
        text = item.text
        if not text:
            if isinstance(item, sent.ForeignItem):
                self._ignore(f"input.{item.type}")
        elif item.is_users:
            self._add_message("user", text)
        else:
            self._append(text)
            self._has_answered = False

    def _thought(self, item: sent.ReasoningItem) -> None:
        if item.text:
            self._own_turn(fresh=True)["reasoning_content"] = item.text
        elif item.encrypted_content:
            self._ignore("input.reasoning")

    def _called(self, call_id: str, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._own_turn().setdefault("tool_calls", []).append(call)

    def _returned(self, call_id: str, content: str | list[ContentPart]) -> None:
        self._turn = None
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})

    def _searched(self, item: sent.ForeignItem, call_id: str) -> None:
        if item.status == "incomplete":
            return  # the call was cut, and its client has not made it
        arguments = item.fields.get("arguments") or {}
        self._searches.add(call_id)
        self._called(call_id, SEARCH, arguments if isinstance(arguments, str) else json.dumps(arguments))

    def _own_turn(self, *, fresh: bool = False) -> dict[str, Any]:
        if self._turn is None or fresh:
            self._turn = {"role": "assistant", "content": None}
            self._has_answered = False
            self.messages.append(self._turn)
        return self._turn
