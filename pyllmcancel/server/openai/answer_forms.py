"""What an answer must look like, from `response_format`, `json_schema`, `grammar`, `tools` and `tool_choice`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pyllmcancel.constraints.guidance import json_rule
from pyllmcancel.constraints.triggered import TriggeredGuide
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.openai.wire_chat import JsonObjectFormat, JsonSchemaFormat

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.constraints.guidance import Guidance
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.server.openai.tool_plan import ToolPlan
    from pyllmcancel.server.openai.wire import GenerationBody
    from pyllmcancel.server.state import ServerState

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class AnswerSchema(NamedTuple):
    """A schema that an answer obeys, and which field it came by."""

    schema: Mapping[str, Any]
    lenient: bool
    param: str


async def answer_constraint(
    state: ServerState, body: GenerationBody, plan: ToolPlan | None = None
) -> ConstraintFactory | None:
    """What decides over the answer's tokens, besides `grammar`, which is llama.cpp's own; None if nothing does.

    Raises
    ------
    InvalidRequestError
        A schema is bad, or asks for what cannot be enforced, or two fields contradict each other.
    """
    schema = answer_schema(body)
    if body.grammar and (schema is not None or plan is not None):
        raise InvalidRequestError("grammar cannot be combined with tools or another form of the answer", "grammar")
    if schema is None and plan is None:
        return None
    return await asyncio.to_thread(compiled, state.guidance, state.engine.model, schema, plan)


def answer_schema(body: GenerationBody) -> AnswerSchema | None:
    """The one schema that the text has to obey."""
    asked = getattr(body, "response_format", None)
    found: AnswerSchema | None = None
    match asked:
        case JsonObjectFormat():
            found = AnswerSchema(asked.schema_ or ANY_OBJECT, False, "response_format")
        case JsonSchemaFormat(json_schema=named):
            wanted = ANY_OBJECT if named.schema_ is None else named.schema_
            found = AnswerSchema(wanted, named.strict is False, "response_format")
    if body.json_schema is None:
        return found
    if found is not None:
        raise InvalidRequestError("json_schema and response_format are two names of the same", "json_schema")
    return AnswerSchema(body.json_schema, False, "json_schema")


def compiled(guidance: Guidance, model: Model, schema: AnswerSchema | None, plan: ToolPlan | None) -> ConstraintFactory:
    """Takes milliseconds, and a second the first time: for a thread of its own."""
    if schema is not None:
        guidance.check_schema(schema.schema, schema.param, lenient=schema.lenient)
    answer = "" if schema is None else json_rule(schema.schema, lenient=schema.lenient)
    if plan is None:
        assert schema is not None
        return guidance.compile(f"start: {answer}", schema.param)
    for index, function in plan.callable:
        param = f"tools[{index}].function.parameters"
        guidance.check_schema(function.parameters, param, lenient=not function.strict)
    functions = [function for _, function in plan.callable]
    grammar = plan.format.grammar(
        functions, partial(literal, model), parallel=plan.parallel, answer="" if plan.required else answer
    )
    guide = guidance.compile(grammar, "tools")
    if plan.required or answer:
        return guide
    return TriggeredGuide(guide, plan.format.trigger, partial(model.piece, special=True), guidance.tokenizer)


def literal(model: Model, text: str) -> str:
    """A text as a grammar's expression: the control token of that name, if there is one, whose text no other has."""
    token = control_token(model, text)
    return json.dumps(text) if token is None else f"<[{token}]>"


def control_token(model: Model, text: str) -> int | None:
    tokens = model.tokenize(text, add_special=False, parse_special=True)
    return tokens[0] if len(tokens) == 1 and not model.piece(tokens[0]) else None


def visible_tokens(model: Model, plan: ToolPlan | None) -> frozenset[int]:
    """Control tokens that must show in the text, so that calls can be told from it."""
    marks = plan.format.marks if plan is not None else ()
    return frozenset(token for mark in marks if (token := control_token(model, mark)) is not None)
