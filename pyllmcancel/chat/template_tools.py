"""Tools in the form that a template takes: with simpler schemas, or in words for one that knows nothing of tools."""

from __future__ import annotations

import json
from typing import Any

Variables = dict[str, Any]
Message = dict[str, Any]

HINT = """\
You can call functions. To call one, write its name and its arguments as JSON between tags:
<tool_call>
{"name": "the name", "arguments": {"an argument": "its value"}}
</tool_call>
These are the functions, with the JSON schemas of their arguments:"""


def in_words(variables: Variables, *, takes_system: bool, takes_strings: bool) -> Variables:
    """Return variables for a template, with tools, past calls and their results as texts among the messages."""
    tools, messages = variables.get("tools") or [], variables["messages"]
    if not tools and not any(message.get("tool_calls") or message["role"] == "tool" for message in messages):
        return variables
    written: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(written, message)
        else:
            written.append(_with_calls(message))
    if tools:
        _add_hint(written, "\n".join([HINT, *(_json(tool["function"]) for tool in tools)]), takes_system=takes_system)
    if not takes_strings:
        written = [{**message, "content": [{"type": "text", "text": _text(message)}]} for message in written]
    return {**variables, "messages": written}


def _add_result(written: list[Message], message: Message) -> None:
    """Add a result; results in a row become one message."""
    result = f"<tool_response>\n{_text(message)}\n</tool_response>"
    if written and written[-1].get("results"):
        written[-1]["content"] += f"\n{result}"
    else:
        written.append({"role": "user", "content": result, "results": True})


def _with_calls(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    parts = [text] if (text := _text(message)) else []
    for call in calls:
        function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        parts.append(f"<tool_call>\n{_json(function)}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(parts)}


def _add_hint(written: list[Message], hint: str, *, takes_system: bool) -> None:
    first = written[0] if written else {"role": "user"}
    if first["role"] == "system":
        written[:1] = [{**first, "content": f"{_text(first)}\n\n{hint}"}]
    elif takes_system:
        written.insert(0, {"role": "system", "content": hint})
    else:
        written[:1] = [{**first, "content": f"{hint}\n\n{_text(first)}"}]


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# -- simpler schemas --------------------------------------------------------------------------------------------------

ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def plain_tools(tools: Any) -> Any:
    """Return the same tools, whose schemas have one type and a description; arrays and objects keep their contents."""
    if not isinstance(tools, list):
        return tools
    return [_plain_tool(tool) for tool in tools]


def _plain_tool(tool: Variables) -> Variables:
    function = tool["function"]
    parameters = _plain({"description": "", **(function.get("parameters") or {}), "type": "object"})
    return {**tool, "function": {**function, "parameters": parameters}}


def _plain(schema: Any) -> Variables:
    if not isinstance(schema, dict):
        return {"type": "string", "description": ""}
    plain = {name: value for name, value in schema.items() if name not in ALTERNATIVES}
    for alternative in _alternatives(schema):
        plain = {**alternative, **plain}
    plain["type"] = _type(plain)
    plain.setdefault("description", "")
    match plain["type"]:
        case "object":
            properties = plain.get("properties")
            properties = properties if isinstance(properties, dict) else {}
            plain["properties"] = {name: _plain(value) for name, value in properties.items()}
        case "array":
            plain["items"] = _plain(plain.get("items"))
    return plain


def _alternatives(schema: Variables) -> list[Variables]:
    """Return the first alternative that is not null."""
    found = [one for name in ALTERNATIVES if isinstance(schema.get(name), list) for one in schema[name]]
    return [one for one in found if isinstance(one, dict) and one.get("type") != "null"][:1]


def _type(schema: Variables) -> str:
    types = schema.get("type")
    known = types if isinstance(types, list) else [types]
    named = [one for one in known if isinstance(one, str) and one != "null"]
    if named:
        return named[0]
    return "object" if "properties" in schema else "array" if "items" in schema else "string"
