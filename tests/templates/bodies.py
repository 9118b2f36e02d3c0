"""The forms of conversations that agents send: 32 request bodies of three dialects.

Every text that must reach the model holds one word of the form ``word07``, by its place in the conversation. Arguments
of calls hold words of the form ``value07``, texts beside calls ``aside07``: templates have their own mind about these.
"""

from dataclasses import dataclass
from typing import Any

FUNCTION = {
    "name": "look",
    "description": "Look at a place.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
CLAUDE_TOOLS = [{"name": "look", "description": "Look at a place.", "input_schema": FUNCTION["parameters"]}]
CODEX_TOOLS = [{"type": "function", **FUNCTION}]
LONG = "call_aB3dE5fG7hJ9kL1mN3pQ5rS7"  # as OpenAI's
CLAUDE = "toolu_01A09q90qw90lq917835lq9"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Form:
    """One form: a body of a dialect, named after what is unusual about it."""

    name: str
    body: dict[str, Any]
    path: str = "/v1/chat/completions"


def system(number: int) -> dict[str, Any]:
    return {"role": "system", "content": f"word{number:02d} holds."}


def developer(number: int) -> dict[str, Any]:
    return {"role": "developer", "content": f"word{number:02d} is law."}


def user(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Is word{number:02d} there?"}


def said(number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"word{number:02d} it is."}


def called(*ids: str) -> dict[str, Any]:
    """An assistant's message with one call for each id."""
    calls = [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": f'{{"at": "value{number:02d}"}}'}}
        for number, each in enumerate(ids)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def returned(number: int, call_id: str = LONG) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": f"word{number:02d} was seen"}


def chat(name: str, *messages: dict[str, Any], tools: bool = False) -> Form:
    return Form(name, {"messages": list(messages)} | ({"tools": TOOLS} if tools else {}))


def text(number: int) -> dict[str, Any]:
    return {"type": "text", "text": f"word{number:02d} in a block"}


def use(call_id: str = CLAUDE) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {"at": "value00"}}


def aside(number: int) -> dict[str, Any]:
    return {"type": "text", "text": f"aside{number:02d} before a call"}


def result(number: int, call_id: str = CLAUDE) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": [text(number)]}


def blocks(role: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def claude(name: str, *messages: dict[str, Any]) -> Form:
    body = {"max_tokens": 4, "system": [text(0)], "messages": list(messages), "tools": CLAUDE_TOOLS}
    return Form(name, body, MESSAGES)


def codex(name: str, *items: dict[str, Any]) -> Form:
    body = {"store": False, "instructions": "word00 holds.", "input": list(items), "tools": CODEX_TOOLS}
    return Form(name, body, RESPONSES)


def call_item(call_id: str = LONG) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": '{"at": "value00"}'}


def output_item(number: int, call_id: str = LONG) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": f"word{number:02d} was seen"}


OLD_CALL = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"at": "value00"}'}}
OLD_RESULT = {"role": "function", "name": "look", "content": "word02 was seen"}
EMPTY_USER = {"role": "user", "content": ""}
EMPTY_ANSWER = {"role": "assistant", "content": ""}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}

LATE_RESULT = "a question between call and result"
FORMS = (
    chat("a system message and a question", system(0), user(1)),
    chat("a question with tools", user(0), tools=True),
    chat("turns after a system message", system(0), user(1), said(2), user(3), said(4), user(5), tools=True),
    chat("a system message alone", system(0)),
    chat("a system message alone, with tools", system(0), tools=True),
    chat("a developer message first", developer(0), user(1)),
    chat("system, then developer", system(0), developer(1), user(2), tools=True),
    chat("two system messages", system(0), system(1), user(2), said(3), user(4)),
    chat("a system message between turns", user(0), said(1), system(2), user(3)),
    chat("a system message at the end", system(0), user(1), said(2), user(3), system(4)),
    chat("a developer message after the question", system(0), user(1), developer(2), tools=True),
    chat("two questions in a row", system(0), user(1), user(2)),
    chat("three questions in a row, with tools", user(0), user(1), user(2), said(3), user(4), tools=True),
    chat("two answers in a row", user(0), said(1), said(2), user(3)),
    chat("an answer first", said(0), user(1)),
    chat("an answer after the system message", system(0), said(1), user(2), tools=True),
    chat("a call and its result", system(0), user(1), called(LONG), returned(2), tools=True),
    chat("two calls at once", user(0), called("1", "2"), returned(1, "1"), returned(2, "2"), tools=True),
    chat("two rounds", user(0), called("a"), returned(1, "a"), called("b"), returned(2, "b"), said(3), user(4)),
    chat("a question after a result", user(0), called(LONG), returned(1), user(2), tools=True),
    chat("a system message after a result", user(0), called(LONG), returned(1), system(2), tools=True),
    chat(LATE_RESULT, user(0), called(LONG), user(1), returned(2), tools=True),
    chat("a result without a call", system(0), returned(1), user(2), said(3), user(4), tools=True),
    chat("a call without a result", user(0), called(LONG), user(1), tools=True),
    chat("one of two calls without a result", user(0), called("1", "2"), returned(1, "1"), user(2), tools=True),
    chat("calls without ids", system(0), user(1), OLD_CALL, OLD_RESULT, tools=True),
    chat("an empty question", system(0), EMPTY_USER, said(1), user(2)),
    chat("an empty answer", user(0), EMPTY_ANSWER, user(1), tools=True),
    claude(
        "Claude Code's reminder after a result",
        *(blocks("user", text(1), text(2)), blocks("assistant", aside(3), use()), blocks("user", result(4), text(5))),
        *(blocks("assistant", use()), blocks("user", result(6), text(7))),
    ),
    claude(
        "Claude Code's results, then a system message",
        blocks("user", text(1)),
        blocks("assistant", aside(2), use("toolu_1"), use("toolu_2")),
        blocks("user", result(3, "toolu_1"), result(4, "toolu_2")),
        blocks("system", text(5)),
    ),
    codex(
        "Codex's permissions, environment and question",
        *(developer(1), user(2), user(3), THOUGHT, call_item(), output_item(4), said(5), user(6)),
    ),
    codex(
        "Codex's change of mode amid calls",
        *(user(1), call_item(), output_item(2), developer(3), call_item("c"), output_item(4, "c")),
    ),
)
