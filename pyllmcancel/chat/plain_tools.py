"""Simplify tools' schemas to the form that templates expect."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def plain_tools(tools: Any) -> Any:
    """Return the same tools, whose schemas have one type and a description; arrays and objects keep their contents."""
    if not isinstance(tools, list):
        return tools
    return [_plain_tool(tool) for tool in tools]


def _plain_tool(tool: Schema) -> Schema:
    function = tool["function"]
    parameters = _plain({"description": "", **(function.get("parameters") or {}), "type": "object"})
    return {**tool, "function": {**function, "parameters": parameters}}


def _plain(schema: Any) -> Schema:
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


def _alternatives(schema: Schema) -> list[Schema]:
    """Return the first alternative that is not null."""
    found = [one for name in ALTERNATIVES if isinstance(schema.get(name), list) for one in schema[name]]
    return [one for one in found if isinstance(one, dict) and one.get("type") != "null"][:1]


def _type(schema: Schema) -> str:
    types = schema.get("type")
    known = types if isinstance(types, list) else [types]
    named = [one for one in known if isinstance(one, str) and one != "null"]
    if named:
        return named[0]
    return "object" if "properties" in schema else "array" if "items" in schema else "string"
