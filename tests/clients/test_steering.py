"""The harness's additions to a client's requests, in each API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.steering import CALL_PROMPT, LONG_PROMPT, SAID, Stage, stage_of, steered

QUESTION = {"role": "user", "content": CALL_PROMPT}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
FUNCTION = {"name": "say", "parameters": SCHEMA}
OTHER = {"name": "other", "parameters": SCHEMA}
CHAT = {
    "messages": [QUESTION],
    "tools": [{"type": "function", "function": OTHER}, {"type": "function", "function": FUNCTION}],
}
RESPONSE = {"input": [QUESTION], "tools": [{"type": "web_search"}, {"type": "function", **FUNCTION}]}
MESSAGE = {"messages": [QUESTION], "tools": [{"name": "say", "input_schema": SCHEMA}]}
BODIES = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSE, "/v1/messages": MESSAGE}
CHOICES = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "say"}},
    "/v1/responses": {"type": "function", "name": "say"},
    "/v1/messages": {"type": "tool", "name": "say", "disable_parallel_tool_use": True},
}
RESULTS = {
    "/v1/chat/completions": {"role": "tool", "content": SAID},
    "/v1/responses": {"type": "function_call_output", "output": SAID},
    "/v1/messages": {"role": "user", "content": [{"type": "tool_result", "content": SAID}]},
}
paths = pytest.mark.parametrize("path", BODIES)


def conversation(body: dict[str, Any]) -> str:
    return "input" if "input" in body else "messages"


@paths
def test_a_tool_is_forced_with_what_it_says(path: str) -> None:
    body = steered(path, BODIES[path])
    assert body["tool_choice"] == CHOICES[path]
    tool = body["tools"][-1]
    schema = tool.get("input_schema") or tool.get("parameters") or tool["function"]["parameters"]
    assert schema["properties"] == {"text": {"const": SAID}}
    assert SCHEMA == {"type": "object", "properties": {"text": {"type": "string"}}}  # the client's own is untouched


@paths
def test_after_the_result_the_answer_is_short(path: str) -> None:
    own = BODIES[path]
    body = own | {conversation(own): [QUESTION, RESULTS[path]]}
    assert stage_of(body) is Stage.ANSWER
    added = set(steered(path, body)) - set(body)
    form = {"/v1/chat/completions": "response_format", "/v1/responses": "text", "/v1/messages": "output_config"}
    assert added == {"tool_choice", form[path]}


@paths
def test_the_long_answer_is_asked_for_as_the_client_asks(path: str) -> None:
    own = BODIES[path]
    body = own | {conversation(own): [QUESTION, RESULTS[path], {"role": "user", "content": LONG_PROMPT}]}
    assert steered(path, body) is body


def test_tools_that_nobody_knows_are_an_error() -> None:
    body = {"messages": [QUESTION], "tools": [{"type": "function", "function": OTHER}]}
    with pytest.raises(ValueError, match="other"):
        steered("/v1/chat/completions", body)
