"""The form of a conversation's answer, and its effect on the choice of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyllmcancel.chat.guide import ChatGuide

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.chat.template import ChatForm
    from pyllmcancel.constraints.guidance import Guide
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.config import ChatDefaults


def constraint_of(
    model: Model, form: ChatForm, text: Guide | None, body: ChatBody, defaults: ChatDefaults
) -> ConstraintFactory | None:
    """Return the constraint of the answer's tokens, besides the form's own grammar."""
    budget = next((n for n in (body.reasoning_budget, defaults.reasoning_budget) if n is not None), -1)
    limited = form.thinking is not None and budget >= 0
    follows = text is not None and (form.thinking is not None or bool(form.triggers))
    if not limited and not follows:
        return text
    marks = [value for kind, value in form.triggers if kind == "word"]
    most = budget if limited else None
    return ChatGuide(model, form.thinking, text, marks=marks, budget=most, message=defaults.reasoning_budget_message)


def visible_tokens(model: Model, form: ChatForm) -> frozenset[int]:
    """Control tokens that must show in the text, so that the parser can tell its parts."""
    found = (model.tokenize(text, add_special=False, parse_special=True) for text in form.preserved_tokens)
    return frozenset(tokens[0] for tokens in found if len(tokens) == 1)


def with_form(params: GenerationParams, form: ChatForm) -> GenerationParams:
    """Add the grammar of tool calls, and the ends of an answer of this form."""
    sampling = params.sampling
    if form.grammar:
        sampling = replace(
            sampling,
            grammar=form.grammar,
            grammar_triggers=form.triggers,
            # A grammar that is active from the start begins with the end of the prompt.
            grammar_prefix="" if form.triggers else form.generation_prompt,
            thinking_start="" if form.thinking is None else form.thinking.start,
            thinking_ends=() if form.thinking is None else form.thinking.ends,
        )
    return replace(params, sampling=sampling, stop=(*params.stop, *form.stops))
