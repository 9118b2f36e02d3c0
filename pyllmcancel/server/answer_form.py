"""The form that an answer must have, a schema or a rule, as a constraint of its tokens.

A strict schema with parts that cannot be enforced is refused; otherwise the parts are reported and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyllmcancel.chat.grammar import has_raw_texts
from pyllmcancel.chat.guide import ChatGuide
from pyllmcancel.constraints.bounded import NamedRule, NamedSchema
from pyllmcancel.constraints.unenforced import enforceable, guidance_knows, unenforced
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.limits import MAX_UNENFORCED
from pyllmcancel.server.wire.form import Gbnf

if TYPE_CHECKING:
    from pyllmcancel.chat.template import ChatForm
    from pyllmcancel.constraints.guidance import Guide
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.chat.body import ChatBody, ToolPlan
    from pyllmcancel.server.state import ServerState
    from pyllmcancel.server.wire.form import Form

BLANKS = r"/[ \t\r\n]{0,32}/"
OF_TEXTS = frozenset(("enum", "const", "pattern", "format", "minLength", "maxLength"))


def chat_constraint(
    state: ServerState, body: ChatBody, form: ChatForm, pause: Pause, *, is_free: bool
) -> tuple[ConstraintFactory | None, list[str]]:
    """Return the constraint of the answer's tokens, besides the form's own grammar, and the parts that it does not
    enforce; there is none if the text `is_free`. Reasoning may have a budget of tokens, and a message at the end of it.
    """
    defaults = state.config.chat
    lost = unenforced_parts(body.tool_plan, body.form, form, is_free=is_free)[:MAX_UNENFORCED]
    has_before = form.thinking is not None or bool(form.triggers)  # reasoning, or calls
    text = None
    if not is_free and (not form.grammar or form.triggers):
        text, of_text = answer_constraint(state, body.form, pause, after_reasoning=has_before)
        lost += of_text
    thinking = None if body.thinking is None else body.thinking.budget_tokens
    budgets = (body.reasoning_budget_tokens, body.thinking_budget_tokens, thinking, defaults.reasoning_budget)
    budget = next((n for n in budgets if n is not None), -1)  # -1: no limit
    most = None if form.thinking is None or budget < 0 else budget
    if most is None and not (text is not None and has_before):
        return text, lost
    marks = [value for kind, value in form.triggers if kind == "word"]
    message = defaults.reasoning_budget_message
    return ChatGuide(state.engine.model, form.thinking, text, marks=marks, budget=most, message=message), lost


def answer_constraint(
    state: ServerState, form: Form | None, pause: Pause, *, after_reasoning: bool = False
) -> tuple[Guide | None, list[str]]:
    """Return the constraint of the answer's tokens, None if there is none, and the parts that it does not enforce. A
    grammar is part of the sampling instead. For a worker.

    If it comes `after_reasoning`, blanks may stand before it: models put some between reasoning and answer.
    InvalidRequestError if the form is invalid, or cannot be enforced.
    """
    if form is None or isinstance(form, Gbnf):
        return None, []
    if isinstance(form, NamedRule):
        return state.guidance.compile_rule(form, pause), []
    lost = list(islice(unenforced(form.schema, guidance_knows), MAX_UNENFORCED))
    lost = _checked(lost, form.param, strict=not form.lenient)
    schema = form._replace(schema=enforceable(form.schema, guidance_knows)) if form.lenient else form
    return state.guidance.compile(schema, before=BLANKS if after_reasoning else "", pause=pause), lost


def unenforced_parts(plan: ToolPlan, wanted: Form | None, form: ChatForm, *, is_free: bool) -> list[str]:
    """Return the parts of the callable tools, and of the text's `wanted` form, that cannot be enforced;
    InvalidRequestError if a strict schema has one. A text that `is_free` obeys nothing.

    Parts that no schema can enforce with this model are only reported: some forms of calls have no grammar, in others
    texts stand as they are, and all tools together may be too many for one grammar.
    """
    found = ["tools"] if plan.may_call and not (form.unenforced and form.grammar) else []
    raw_texts = plan.may_call and has_raw_texts(form.grammar)
    tools = zip(plan.tools, form.unenforced, strict=True) if plan.may_call and form.unenforced else ()
    for (place, tool), lost in tools:
        param = f"tools[{place}].function.parameters"
        found += _checked(lost[:MAX_UNENFORCED], param, strict=tool.function.strict is True)
        if raw_texts:
            texts = unenforced(_texts_of(tool.function.parameters), lambda keyword, _: keyword not in OF_TEXTS)
            found += _checked(list(islice(texts, MAX_UNENFORCED)), param, strict=False)
    if isinstance(wanted, NamedSchema):
        found += _checked(form.unenforced_of_answer[:MAX_UNENFORCED], wanted.param, strict=not wanted.lenient)
    if is_free and wanted is not None:
        found.append(wanted.param)
    return list(dict.fromkeys(found))


def _texts_of(schema: Any) -> dict[str, Any]:
    """Return the arguments that are texts."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    every = properties.items() if isinstance(properties, Mapping) else ()
    return {"properties": {name: one for name, one in every if isinstance(one, Mapping) and _is_text(one)}}


def _is_text(schema: Mapping[str, Any]) -> bool:
    values = schema.get("enum") or [schema.get("const")]
    return schema.get("type") == "string" or (
        isinstance(values, list) and all(isinstance(value, str) for value in values)
    )


def _checked(found: Sequence[str], param: str, *, strict: bool) -> list[str]:
    """Return the paths of parts that are not enforced, within the request."""
    if found and strict:
        raise InvalidRequestError(f"{found[0] or 'it'} cannot be enforced, and the schema is strict", param)
    return [f"{param}.{path}" if path else param for path in found]
