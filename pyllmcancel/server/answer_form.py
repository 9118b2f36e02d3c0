"""The form that an answer must have, a JSON schema or calls of tools, as a constraint of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.constraints.guidance import json_rule
from pyllmcancel.constraints.tool_formats import literal
from pyllmcancel.constraints.triggered import TriggeredGuide
from pyllmcancel.server.origin import origin_of
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel._native import Model
    from pyllmcancel.constraints.bounded import BoundedGuidance
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.chat.tools import ToolPlan
    from pyllmcancel.server.wire import GeneratingBody


async def answer_constraint(
    request: Request, body: GeneratingBody, schema: NamedSchema | None, plan: ToolPlan | None = None
) -> ConstraintFactory | None:
    """What decides over the answer's tokens, besides a grammar, which is part of the sampling; None if nothing does.

    Raises
    ------
    InvalidRequestError
        A schema is bad, or asks for what cannot be enforced.
    """
    if schema is None and plan is None:
        return None
    state = state_of(request)
    work = partial(compiled, state.guidance, state.engine.model, schema, plan)
    return await state.preparations.run(request, work, origin_of(request, body))


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
