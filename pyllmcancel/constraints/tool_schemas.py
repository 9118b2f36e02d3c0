"""The preparation of a chat's schemas for llama.cpp's grammars, in one place for the tools of every API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyllmcancel.constraints.gbnf_schema import answer_schema, arguments_schema
from pyllmcancel.constraints.schema_keywords import ANY_OBJECT


def with_schemas(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a template, with the schemas that grammars follow; and what these schemas lack.

    Parameters
    ----------
    inputs
        The inputs' `tools` and `json_schema` may be any JSON. If `enforces_schemas` is false, arguments of tools may be
        any object, because all schemas together are too much for one grammar.

    Returns
    -------
    inputs
        The inputs with `tool_schemas`, one for each tool. The template sees the original tools.
    unenforced
        For a `chat_template.ChatForm`.
    """
    tools = inputs.get("tools") or ()
    if inputs.get("enforces_schemas", True):
        ready = [arguments_schema(tool["function"].get("parameters"), f"t{n}d") for n, tool in enumerate(tools)]
    else:
        ready = []
    found = {**inputs, "tool_schemas": [schema for schema, _ in ready] or [ANY_OBJECT] * len(tools)}
    unenforced: dict[str, Any] = {"unenforced": [lost for _, lost in ready]}
    if inputs.get("json_schema") is not None:
        found["json_schema"], unenforced["unenforced_of_answer"] = answer_schema(inputs["json_schema"])
    return found, unenforced


def with_plain_schemas(tools: Sequence[Mapping[str, Any]], schemas: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the same tools with other schemas."""
    functions = [{**tool["function"], "parameters": schema} for tool, schema in zip(tools, schemas, strict=True)]
    return [{**tool, "function": function} for tool, function in zip(tools, functions, strict=True)]
