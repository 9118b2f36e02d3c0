"""The form that an answer must have, a schema or a rule, as a constraint of its tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyllmcancel.constraints.bounded import NamedRule, NamedSchema
from pyllmcancel.constraints.unenforced import enforceable, guidance_knows
from pyllmcancel.server.preparing import prepare
from pyllmcancel.server.wire.unenforced import note_unenforced, unenforced_of_answer

if TYPE_CHECKING:
    from pyllmcancel.constraints.bounded import BoundedGuidance
    from pyllmcancel.constraints.guidance import Guide
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.wire.fields import GeneratingBody

BLANKS = r"/[ \t\r\n]{0,32}/"


async def answer_constraint(
    incoming: Incoming[GeneratingBody], form: NamedSchema | NamedRule | None
) -> ConstraintFactory | None:
    """Return the constraint of the answer's tokens; None if there is none. A grammar is part of the sampling instead.

    Raises
    ------
    InvalidRequestError
        The form is invalid, or cannot be enforced.
    """
    return with_token_limits(incoming, await answer_guide(incoming, form))


async def answer_guide(
    incoming: Incoming[GeneratingBody],
    form: NamedSchema | NamedRule | None,
    *,
    after_reasoning: bool = False,
) -> Guide | None:
    """Return the form alone; raises as `answer_constraint`.

    Parameters
    ----------
    after_reasoning
        True if blanks may stand before it: models put some between reasoning and answer.
    """
    if form is None:
        return None
    state = incoming.state
    if isinstance(form, NamedRule):
        work = partial(state.guidance.compile_rule, form)
    else:
        note_unenforced(incoming, unenforced_of_answer(form))
        work = partial(compiled, state.guidance, form, BLANKS if after_reasoning else "")
    return await prepare(incoming.http, work, state.preparers)


def with_token_limits(incoming: Incoming[GeneratingBody], form: ConstraintFactory | None) -> ConstraintFactory | None:
    """Return the form, with the tokens that the answer may also have."""
    if not incoming.body.limits_tokens:
        return form
    state = incoming.state
    return incoming.body.token_limits(state.engine.model.n_vocab, state.eog_tokens, form)


def compiled(guidance: BoundedGuidance, schema: NamedSchema, before: str, pause: Pause) -> Guide:
    """Compile the form. This takes milliseconds, so it belongs into a thread."""
    if schema.lenient:
        schema = schema._replace(schema=enforceable(schema.schema, guidance_knows))
    return guidance.compile(schema, before=before, pause=pause)
