"""Conversations and tools in the forms that clients send: each is what `_native.ChatTemplate.apply` takes."""

from __future__ import annotations

from typing import Any

Form = dict[str, Any]


def tool(**properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": "find", "description": "Finds it.", "parameters": parameters}}


def call(number: int, arguments: str = '{"place": "Köln 😀"}') -> dict[str, Any]:
    return {"id": f"call0000{number}", "type": "function", "function": {"name": "find", "arguments": arguments}}


def results(n_calls: int) -> list[dict[str, Any]]:
    calls = [call(number) for number in range(n_calls)]
    told = [{"role": "tool", "tool_call_id": one["id"], "name": "find", "content": '{"sky": "grey"}'} for one in calls]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *told]


USER = {"role": "user", "content": "What is the <b>weather</b> in Köln? 😀"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Grey."}
THOUGHT = {**ANSWER, "reasoning_content": "I have looked."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "this?"}]}
PLACE = {"place": {"type": "string", "description": "Where."}}
SCHEMAS: dict[str, dict[str, Any]] = {
    "a described text": PLACE,
    "a text without description": {"place": {"type": "string"}},
    "no parameters": {},
    "an array without items": {"places": {"type": "array"}},
    "an array of objects": {"places": {"type": "array", "items": {"type": "object", "properties": PLACE}}},
    "a list of types": {"place": {"type": ["string", "null"], "description": "Where."}},
    "anyOf": {"place": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Place"}},
    "an enumeration": {"unit": {"type": "string", "enum": ["C", "F"], "default": "C", "description": "Unit."}},
    "no type": {"place": {"description": "Where."}},
    "a reference": {"place": {"$ref": "#/$defs/place"}},
    "a map": {"tags": {"type": "object", "additionalProperties": {"type": "integer"}, "description": "Tags."}},
}
TALKS: dict[str, list[dict[str, Any]]] = {
    "a question": [USER],
    "with a system's message": [SYSTEM, USER],
    "two turns": [SYSTEM, USER, ANSWER, USER],
    "two turns, reasoned": [USER, THOUGHT, USER],
    "parts": [PARTS],
    "a call and its result": [USER, *results(1)],
    "two calls and a question": [SYSTEM, USER, *results(2), ANSWER, USER],
}


def forms() -> dict[str, Form]:
    """By name: each talk without tools and with one, and each schema."""
    found: dict[str, Form] = {name: {"messages": talk} for name, talk in TALKS.items()}
    found |= {f"{name}; a tool": {"messages": talk, "tools": [tool(**PLACE)]} for name, talk in TALKS.items()}
    found |= {f"a tool: {name}": {"messages": [USER], "tools": [tool(**schema)]} for name, schema in SCHEMAS.items()}
    found["no reasoning"] = {"messages": [USER], "enable_thinking": False}
    found["effort"] = {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "high"}}
    found["goes on"] = {"messages": [USER, ANSWER], "continue_final_message": True, "add_generation_prompt": False}
    return found
