"""Additions to a client's requests, so that a model that calls no tools by itself calls one, harmlessly.

A conversation goes through three stages. In the first a tool is forced (`tool_choice`), and what it is called with: the
tool's schema allows nothing else. When its result is there, a schema makes the answer short. What the client asks for
with `LONG_PROMPT` is left as it is. Titles, for which agents ask beside the conversation, are short likewise.
"""

import copy
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

CALL_PROMPT = "Say hello with the tool."
LONG_PROMPT = "Write a long Python module."
SAID = "it works"  # what the tool says, in the conversation from then on

# Tools of clients, with what they are called with.
CALLS: dict[str, dict[str, str]] = {
    "bash": {"command": f"echo {SAID}", "description": "Say hello"},
    "Bash": {"command": f"echo {SAID}", "description": "Say hello"},
    "exec_command": {"cmd": f"echo {SAID}"},
    "say": {"text": SAID},
}
RESULTS = ("tool", "tool_result", "function_call_output")

Body = dict[str, Any]


class Stage(StrEnum):
    CALL = "call"
    ANSWER = "answer"
    FREE = "free"
    TITLE = "title"  # of the conversation, beside it


def stage_of(body: Body) -> Stage:
    conversation = body.get("messages", body.get("input", []))
    if not body.get("tools"):
        return Stage.TITLE if "title" in json.dumps(body).lower() else Stage.FREE
    if LONG_PROMPT in json.dumps(conversation):
        return Stage.FREE
    return Stage.ANSWER if tool_results(conversation) else Stage.CALL


def tool_results(conversation: Any) -> list[Any]:
    """Messages, blocks and items that hold what a tool said."""
    if isinstance(conversation, str):
        return []
    parts = [part for message in conversation for part in (message, *blocks(message))]
    return [part for part in parts if {part.get("role"), part.get("type")} & set(RESULTS)]


def blocks(message: Body) -> list[Body]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def steered(path: str, body: Body) -> Body:
    """The body that the server gets for this one of the client."""
    match stage_of(body):
        case Stage.CALL:
            return with_call(path, body)
        case Stage.ANSWER:
            return with_short_answer(path, body, {"answer": "done"}) | no_tool(path)
        case Stage.TITLE:
            return with_short_answer(path, body, {"title": "hello"})
        case Stage.FREE:
            return body


def with_call(path: str, body: Body, calls: Mapping[str, dict[str, str]] = CALLS) -> Body:
    """Force the first tool that `calls` has, with what it is called with."""
    body = copy.deepcopy(body)
    functions = {
        function["name"]: function for tool in body["tools"] if "name" in (function := tool.get("function", tool))
    }
    name = next((name for name in functions if name in calls), None)
    if name is None:
        raise ValueError(f"none of the tools is known: {', '.join(functions)}")
    key = "input_schema" if path.endswith("/messages") else "parameters"
    functions[name] |= {key: exactly(calls[name]), "strict": True}
    if path.endswith("/messages"):
        body["tool_choice"] = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
        return body
    body["parallel_tool_calls"] = False  # the model would call for ever
    if path.endswith("/responses"):
        body["tool_choice"] = {"type": "function", "name": name}
    else:
        body["tool_choice"] = {"type": "function", "function": {"name": name}}
    return body


def exactly(arguments: dict[str, str]) -> dict[str, Any]:
    """A schema that allows these arguments only."""
    properties = {name: {"const": value} for name, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments), "additionalProperties": False}


def with_short_answer(path: str, body: Body, answer: dict[str, str]) -> Body:
    schema = exactly(answer)
    form = {"name": "answer", "schema": schema}
    if path.endswith("/messages"):
        output = body.get("output_config", {}) | {"format": {"type": "json_schema", "schema": schema}}
        return body | {"output_config": output}
    if path.endswith("/responses"):
        return body | {"text": body.get("text", {}) | {"format": {"type": "json_schema"} | form}}
    return body | {"response_format": {"type": "json_schema", "json_schema": form}}


def no_tool(path: str) -> Body:
    return {"tool_choice": {"type": "none"} if path.endswith("/messages") else "none"}
