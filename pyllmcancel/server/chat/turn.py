"""One turn of a conversation: its request to the engine, and the parsing of its answer. For every API that has
chats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from pyllmcancel.chat.guide import ChatGuide
from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.errors import InvalidRequestError, UsageError
from pyllmcancel.server.answer_form import (
    answer_constraint,
    note_unenforced,
    unenforced_of_form,
    unenforced_of_tools,
)
from pyllmcancel.server.chat.answer_parser import AnswerParser, read_form
from pyllmcancel.server.chat.prompt import render, template_inputs
from pyllmcancel.server.chat.tools import tool_plan
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.media.gathering import gathered, given_in, media_tokens

if TYPE_CHECKING:
    from pyllmcancel._native import ChatParser, Model
    from pyllmcancel.chat.template import ChatForm
    from pyllmcancel.constraints.bounded import NamedRule
    from pyllmcancel.constraints.guidance import Guide
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.pausing import FlaggedPause
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.chat.tools import ToolPlan
    from pyllmcancel.server.config import ChatDefaults
    from pyllmcancel.server.media.gathering import Gathered


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A chat's tokens and parameters for the engine, and the function that makes a parser for each of its choices."""

    tokens: Sequence[int]
    params: GenerationParams
    new_parser: Callable[[], AnswerParser]


async def chat_turn(incoming: Incoming[ChatBody]) -> ChatTurn:
    """Render and tokenize a conversation, and compile the form of its answer; it can be cancelled at any time.

    Raises
    ------
    InvalidRequestError, ApiError
        The body contradicts itself, the template refuses it, or its schemas cannot be enforced.
    """
    state, body = incoming.state, incoming.body
    body.check()
    plan = tool_plan(body)
    wanted = body.answer_schema(calls=plan.may_call)
    asked = await gathered(incoming.http, given_in(body.media), "messages")
    # Always off the event loop, and visible to clients: the model's template decides what it does.
    work = partial(read_chat, incoming, plan, wanted, asked)
    read = await incoming.prepare(work, state.decoders if asked else state.preparers)
    form = read.form
    if plan.may_call:
        note_unenforced(incoming, unenforced_of_tools(plan, form))
    if isinstance(wanted, NamedSchema):
        note_unenforced(incoming, unenforced_of_form(wanted, form))
    if read.is_free and wanted is not None:
        note_unenforced(incoming, [wanted.param])
    text = None
    if not read.is_free and (not form.grammar or form.triggers):
        after = form.thinking is not None or bool(form.triggers)
        text = await answer_constraint(incoming, wanted, after_reasoning=after)
    model = state.engine.model
    constraint = constraint_of(model, form, text, body, state.config.chat)
    constraint = body.token_limits(model.n_vocab, state.eog_tokens, constraint)
    params = body.generation_params(state.config.request_defaults(), constraint, visible_tokens(model, form))
    params = replace(with_form(params, form), prediction=read.prediction)
    name, number = f"{incoming.request.id} {exchange_of(incoming.http.scope).created_at!r}", count()
    return ChatTurn(read.tokens, params, lambda: AnswerParser(read.answers, f"{name} {next(number)}"))


async def chat_length(incoming: Incoming[ChatBody]) -> int:
    """Return the number of tokens of a conversation, even if they do not fit; raises as `chat_turn`."""
    state, body = incoming.state, incoming.body
    given = given_in(body.media)
    asked = await gathered(incoming.http, given, "messages", must_fit=False)

    def work(pause: FlaggedPause) -> int:
        inputs = template_inputs(body, state.chat_template, tool_plan(body), state.config.chat)
        prompt = render(body, state.chat_template, inputs, incoming.request.owner, pause).prompt
        state.texts.check_length(len(prompt), "messages")
        return len(prompt_tokens(incoming, prompt, asked, pause, must_fit=False))

    return await incoming.prepare(work, state.decoders if asked else state.preparers)


@dataclass(frozen=True, slots=True)
class ReadChat:
    """A conversation as its template has written it, its tokens, the parser of its answers, and what they are expected
    to be.

    The text of the answer `is_free` if it may be a call instead, and only llama.cpp knows the text before either.
    """

    form: ChatForm
    answers: ChatParser
    tokens: Sequence[int]
    is_free: bool
    prediction: tuple[int, ...]


def read_chat(
    incoming: Incoming[ChatBody],
    plan: ToolPlan,
    wanted: NamedSchema | NamedRule | None,
    asked: Gathered,
    pause: FlaggedPause,
) -> ReadChat:
    state, body = incoming.state, incoming.body
    template = state.chat_template
    inputs = template_inputs(body, template, plan, state.config.chat)
    if isinstance(wanted, NamedSchema) and template.wraps_content and not plan.may_call:
        inputs["json_schema"] = wanted.schema
    owner = incoming.request.owner
    form = render(body, template, inputs, owner, pause)
    if plan.may_call and not is_followable(form):
        form = without_too_much(render(body, template, inputs | {"enforces_schemas": False}, owner, pause))
    pause()
    tokens = prompt_tokens(incoming, form.prompt, asked, pause)
    prediction = state.texts.predicted(body.predicted, pause)
    return ReadChat(form, read_form(form.parser), tokens, plan.may_call and template.wraps_content, prediction)


def prompt_tokens(
    incoming: Incoming[ChatBody], prompt: str, asked: Gathered, pause: FlaggedPause, *, must_fit: bool = True
) -> Sequence[int]:
    """Return the tokens of a rendered conversation, with those of its pictures and sounds."""
    state, last = incoming.state, incoming.body.truncate_prompt_tokens
    if not asked:
        return state.texts.chat(prompt, "messages", pause, must_fit=must_fit, last=last)
    if last:
        raise InvalidRequestError("a conversation with pictures or sounds is not truncated", "truncate_prompt_tokens")
    if must_fit:
        state.texts.check_length(len(prompt), "messages")
    return media_tokens(state, prompt, asked, pause, must_fit=must_fit)


def is_followable(form: ChatForm) -> bool:
    """Return whether the grammar of its calls is within the core's limits."""
    try:
        compiled_module().check_grammar(form.grammar)
    except UsageError:
        return False
    return True


def without_too_much(form: ChatForm) -> ChatForm:
    """Drop a grammar that waits for a call and cannot be followed: the model's calls are then free.

    A required call cannot be left to the model. Its grammar is refused when the request is submitted.
    """
    return replace(form, grammar="") if form.triggers and not is_followable(form) else form


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
