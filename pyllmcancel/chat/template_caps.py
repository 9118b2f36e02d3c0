"""The capabilities of a chat template, found out by rendering: a text that it was given is in its output or not.

The names are those of llama.cpp, whose analysis of a template begins with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Render = Callable[[dict[str, Any]], str | None]  # None: the template refuses
Message = dict[str, Any]

ASKED, THOUGHT, RULED, RESULT = "<asked>", "<thought>", "<ruled>", "<result>"
TOOL, ARGUMENT, VALUES = "find_needle", "needle", ("<first>", "<second>")
EFFORTS = ("none", "low", "medium", "high", "max")
USER = {"role": "user", "content": ASKED}
ANSWER = {"role": "assistant", "content": "<answered>"}
PROPERTIES = {ARGUMENT: {"type": "string", "description": "The one."}}
PARAMETERS = {"type": "object", "properties": PROPERTIES, "required": [ARGUMENT]}
TOOLS = [{"type": "function", "function": {"name": TOOL, "description": "Finds it.", "parameters": PARAMETERS}}]


def _variables(*messages: Message, **others: Any) -> dict[str, Any]:
    """Return the variables that llama.cpp's chat layer passes."""
    tokens = {"bos_token": "", "eos_token": "", "datetime": "Jan 01 2026", "date_string": "01 Jan 2026"}
    return {"messages": list(messages), "add_generation_prompt": True, **tokens, **others}


def _parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


TALK = (_variables(USER), _variables(_parts(USER)))  # the minimum that a template must render, in both forms


def caps_of(render: Render) -> dict[str, bool]:
    """Find out the capabilities by rendering small conversations."""
    trial = _Trial(render)
    objects = trial.shows_call(as_object=True)
    return {
        "supports_string_content": trial.as_string,
        "supports_typed_content": trial.as_parts,
        "supports_system_role": RULED in trial.rendered({"role": "system", "content": RULED}, USER),
        "supports_tools": TOOL in trial.rendered(USER, tools=TOOLS),
        "supports_tool_calls": objects or trial.shows_call(as_object=False),
        "supports_parallel_tool_calls": trial.shows_call(*VALUES, as_object=objects),
        "supports_object_arguments": objects,
        "supports_preserve_reasoning": trial.preserves_reasoning(),
        "supports_reasoning_effort": trial.weighs_effort(),
    }


class _Trial:
    """One template, and the form of contents that it expects."""

    def __init__(self, render: Render) -> None:
        self._render = render
        as_string, as_parts = (render(variables) or "" for variables in TALK)
        # A template that writes out any input also writes the names of the parts.
        self.as_parts = ASKED in as_parts and not any(quoted in as_parts for quoted in ("'text'", '"text"'))
        self.as_string = ASKED in as_string or not self.as_parts

    def rendered(self, *messages: Message, **variables: Any) -> str:
        """Return the text; empty if the template refuses."""
        given = messages if self.as_string else [_parts(message) for message in messages]
        return self._render(_variables(*given, **variables)) or ""

    def shows_call(self, *values: str, as_object: bool) -> bool:
        """Return whether the arguments of past calls are in the text, and not as Python writes a dictionary."""
        values = values or VALUES[:1]
        calls = [_call(number, value, as_object=as_object) for number, value in enumerate(values)]
        results = [{"role": "tool", "content": RESULT, "name": TOOL, "tool_call_id": call["id"]} for call in calls]
        asking: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        text = self.rendered(USER, asking, *results, ANSWER, USER, tools=TOOLS)
        return all(value in text and str({ARGUMENT: value}) not in text for value in values)

    def preserves_reasoning(self) -> bool:
        """Return whether an earlier answer keeps its reasoning."""
        kept = {"enable_thinking": True, "preserve_thinking": True}
        dropped = dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), False)
        thoughts = [{**ANSWER, "reasoning_content": thought} for thought in (THOUGHT, "more")]
        talk = (USER, thoughts[0], USER, thoughts[1], USER)
        return THOUGHT in self.rendered(*talk, **kept, **dropped)

    def weighs_effort(self) -> bool:
        """Return whether another effort changes the text."""
        efforts = [{"reasoning_effort": effort, "reasoning_strength": effort} for effort in EFFORTS]
        return len({self.rendered(USER, enable_thinking=True, **effort) for effort in efforts}) > 1


def _call(number: int, value: str, *, as_object: bool) -> dict[str, Any]:
    arguments = {ARGUMENT: value}
    function = {"name": TOOL, "arguments": arguments if as_object else json.dumps(arguments)}
    return {"id": f"call0000{number}", "type": "function", "function": function}  # Mistral requires nine characters
