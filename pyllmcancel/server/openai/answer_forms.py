"""What an answer must look like, from `response_format`, `json_schema`, `grammar`, `tools` and `tool_choice`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.constraints.guidance import json_rule
from pyllmcancel.constraints.triggered import TriggeredGuide
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.openai.wire_chat import JsonObjectFormat, JsonSchemaFormat
from pyllmcancel.server.state import state_of
from pyllmcancel.server.submission import session_of

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel._native import Model
    from pyllmcancel.constraints.bounded import BoundedGuidance
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.openai.tool_plan import ToolPlan
    from pyllmcancel.server.openai.wire import GenerationBody

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


async def answer_constraint(
    request: Request, body: GenerationBody, plan: ToolPlan | None = None
) -> ConstraintFactory | None:
    """What decides over the answer's tokens, besides `grammar`, which is part of the sampling; None if nothing does.

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
    state = state_of(request)
    work = partial(compiled, state.guidance, state.engine.model, schema, plan)
    return await state.preparations.run(request, work, session_of(request, body))


def answer_schema(body: GenerationBody) -> NamedSchema | None:
    """The one schema that the text has to obey."""
    asked = getattr(body, "response_format", None)
    found: NamedSchema | None = None
    match asked:
        case JsonObjectFormat():
            found = NamedSchema(asked.schema_ or ANY_OBJECT, "response_format")
        case JsonSchemaFormat(json_schema=named):
            wanted = ANY_OBJECT if named.schema_ is None else named.schema_
            found = NamedSchema(wanted, "response_format", named.strict is False)
    if body.json_schema is None:
        return found
    if found is not None:
        raise InvalidRequestError("json_schema and response_format are two names of the same", "json_schema")
    return NamedSchema(body.json_schema, "json_schema")


def compiled(
    guidance: BoundedGuidance, model: Model, schema: NamedSchema | None, plan: ToolPlan | None, pause: Pause
) -> ConstraintFactory:
    """Takes milliseconds, and a second the first time: for a thread of its own."""
    answer = "" if schema is None else json_rule(schema.schema, lenient=schema.lenient)
    schemas = [] if schema is None else [schema]
    if plan is None:
        assert schema is not None
        return guidance.compile(schemas, lambda _: f"start: {answer}", schema.param, pause=pause)
    for index, function in plan.callable:
        param = f"tools[{index}].function.parameters"
        schemas.append(NamedSchema(function.parameters, param, not function.strict))
    functions = [function for _, function in plan.callable]
    other = "" if plan.required else answer

    def grammar(spelled: Callable[[str], str]) -> str:
        return plan.format.grammar(functions, spelled, parallel=plan.parallel, answer=other)

    guide = guidance.compile(schemas, grammar, "tools", literal=partial(literal, model), pause=pause)
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
