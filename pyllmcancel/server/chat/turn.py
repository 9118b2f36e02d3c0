"""One turn of a conversation: the inputs of the model's template, its request to the engine, and the parsing of its
answer. For every API that has chats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.engine.compiled import compiled_module
from pyllmcancel.errors import InvalidRequestError, UsageError
from pyllmcancel.server.answer_form import chat_constraint
from pyllmcancel.server.bodies import FieldNames, json_value
from pyllmcancel.server.chat.answer_parser import AnswerParser
from pyllmcancel.server.chat.body import NamedTool
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.generate import Plan
from pyllmcancel.server.limits import MAX_ARGUMENT_VALUES
from pyllmcancel.server.media.gathering import gathered, given_in, media_tokens

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.chat.template import ChatForm, ChatTemplate
    from pyllmcancel.pausing import FlaggedPause, Pause
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.chat.body import ChatBody
    from pyllmcancel.server.chat.messages import Message
    from pyllmcancel.server.config import ChatDefaults
    from pyllmcancel.server.media.gathering import Gathered
    from pyllmcancel.server.state import ServerState

USUAL_ROLES = ("system", "developer", "user", "assistant", "tool")
# The variables that a client may not replace, because a template must get each only once.
OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
# Inputs that are a request's own.
OWN_INPUTS = ("tools", "json_schema", "grammar", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class ChatTurn(Plan):
    """A chat's plan, whose one prompt is the conversation."""

    new_parser: Callable[[], AnswerParser]  # makes a parser for each choice


async def chat_turn(incoming: Incoming[ChatBody]) -> ChatTurn:
    """Render and tokenize a conversation, and compile the form of its answer; it can be cancelled at any time.

    InvalidRequestError or ApiError if the body contradicts itself, the template refuses it, or its schemas cannot be
    enforced.
    """
    state, asked = incoming.state, await gathered(incoming, given_in(incoming.body), "messages")
    # Always off the event loop, and visible to clients: the model's template decides what it does.
    turn = await incoming.prepare(partial(read_chat, incoming, asked), state.decoders if asked else state.preparers)
    incoming.note_unenforced(turn.unenforced)
    return turn


async def chat_length(incoming: Incoming[ChatBody]) -> int:
    """Return the number of tokens of a conversation, even if they do not fit; raises as `chat_turn`."""
    state, body = incoming.state, incoming.body
    asked = await gathered(incoming, given_in(body), "messages", must_fit=False)

    def work(pause: FlaggedPause) -> int:
        prompt = render(state, body, incoming.request.owner, pause).prompt
        state.texts.check_length(len(prompt), "messages")
        return len(prompt_tokens(state, prompt, asked, pause, body.truncate_prompt_tokens, must_fit=False))

    return await incoming.prepare(work, state.decoders if asked else state.preparers)


def read_chat(incoming: Incoming[ChatBody], asked: Gathered, pause: FlaggedPause) -> ChatTurn:
    """Prepare a conversation from its messages to the parameters of its answers. For a worker."""
    state, body, request = incoming.state, incoming.body, incoming.request
    may_call, wraps, schema = body.tool_plan.may_call, state.chat_template.wraps_content, dict[str, Any]()
    if isinstance(body.form, NamedSchema) and wraps and not may_call:
        schema["json_schema"] = body.form.schema
    form = render(state, body, request.owner, pause, **schema)
    if may_call and not is_followable(form):
        form = render(state, body, request.owner, pause, **schema, enforces_schemas=False)
        if form.triggers and not is_followable(form):
            # The model's calls are then free. A required call cannot be left to the model: its grammar, which waits for
            # nothing, is refused when the request is submitted.
            form = replace(form, grammar="")
    pause()
    tokens = prompt_tokens(state, form.prompt, asked, pause, body.truncate_prompt_tokens)
    prediction = state.texts.predicted(body.predicted, pause)
    # A text that may be a call instead is free: only llama.cpp knows the text before either.
    constraint, unenforced = chat_constraint(state, body, form, pause, is_free=may_call and wraps)
    params = with_form(body.generation_params(state, constraint, prediction), form, state.engine.model)
    answers = compiled_module().ChatParser(form.parser)  # with many tools that takes milliseconds
    name, number = f"{request.id} {incoming.exchange.created_at!r}", count()
    # A grammar that is not the client's own is that of its tools.
    names = FieldNames({"prompt": "messages", "grammar": "tools" if body.form is None else body.form.param})
    return ChatTurn(
        incoming, [tokens], params, names, unenforced, lambda: AnswerParser(answers, f"{name} {next(number)}")
    )


def prompt_tokens(
    state: ServerState, prompt: str, asked: Gathered, pause: FlaggedPause, last: int | None, *, must_fit: bool = True
) -> Sequence[int]:
    """Return the tokens of a rendered conversation, all or the `last`, with those of its pictures and sounds."""
    if not asked:
        tokens = state.texts.tokens(prompt, "messages", pause, parse_special=True, must_fit=must_fit, last=last)
        # Templates spell special tokens, often the first one (bos), which must not stand twice.
        bos = state.engine.model.special_tokens.get("bos")
        return tokens[1:] if list(tokens[:2]) == [bos, bos] else tokens
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


def with_form(params: GenerationParams, form: ChatForm, model: Model) -> GenerationParams:
    """Add the grammar of tool calls, the ends of an answer of this form, and the control tokens that must show in the
    text, so that the parser can tell its parts.
    """
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
    shown = (model.tokenize(text, add_special=False, parse_special=True) for text in form.preserved_tokens)
    visible = frozenset(tokens[0] for tokens in shown if len(tokens) == 1)
    return replace(params, sampling=sampling, stop=(*params.stop, *form.stops), visible_tokens=visible)


# -- the prompt -------------------------------------------------------------------------------------------------------


def render(state: ServerState, body: ChatBody, owner: str, pause: Pause, **changes: Any) -> ChatForm:
    """Return the conversation as the model was trained to read it, and the form of its answer. InvalidRequestError if
    the template refuses the messages, or does not know a role.

    The inputs of the template are those of `template_inputs`, with the `changes`.
    """
    template = state.chat_template
    inputs = template_inputs(body, template, state.config.chat) | changes
    if any(inputs.get(name) for name in OWN_INPUTS):
        # The compiled template remembers forms of answers by all inputs but the messages. Another owner's request with
        # the same tools must not be quicker for it.
        inputs["owner"] = owner
    form = template.apply(inputs, pause)
    # Checked after rendering: the template's own refusal says more.
    for message in body.messages:
        if message.role not in USUAL_ROLES and not template.knows_role(message.role):
            raise InvalidRequestError(f"the chat template does not know the role {message.role!r}", "messages")
    return form


def template_inputs(body: ChatBody, template: ChatTemplate, defaults: ChatDefaults) -> dict[str, Any]:
    """Return the inputs as `_native.ChatTemplate.apply` takes them."""
    tools = body.tool_plan
    given = {name: value for name, value in (body.chat_template_kwargs or {}).items() if value is not None}
    for name in OWN_VARIABLES & given.keys():
        message = f"{name} cannot be a template variable: it has a field of its own, or belongs to the server"
        raise InvalidRequestError(message, "chat_template_kwargs")
    variables = {**defaults.template_variables, **body.thinking_variables(template.switches), **given}
    thinks = variables.get("enable_thinking", True)
    if not isinstance(thinks, bool):
        raise InvalidRequestError("enable_thinking must be true or false", "chat_template_kwargs")
    if tools.may_call and not defaults.jinja:
        raise InvalidRequestError("this server's chat template does not support tools", "tools")
    goes_on = continues(body, defaults)
    opens = body.add_generation_prompt is not False and not goes_on
    several = body.parallel_tool_calls
    if several is None:  # a single named tool is called only once
        several = template.caps["supports_parallel_tool_calls"] and not isinstance(body.tool_choice, NamedTool)
    return {
        "messages": template_messages(body.messages),
        "tools": [
            tool.model_dump(include={"type": True, "function": True}, exclude_none=True) for _, tool in tools.tools
        ],
        "tool_choice": tools.choice,
        "add_generation_prompt": opens,
        "continue_final_message": goes_on,
        "reasoning_format": body.reasoning_format or defaults.reasoning_format,
        "enable_thinking": thinks,
        "chat_template_kwargs": variables,
        "parallel_tool_calls": several,
    }


def continues(body: ChatBody, defaults: ChatDefaults) -> bool | str:
    """Return whether the answer goes on with the last message, and with which part of it; InvalidRequestError if that
    cannot be continued.
    """
    asked = body.continue_final_message
    last = body.messages[-1]
    if not asked:
        given = last.text or (last.model_extra or {}).get("reasoning_content")
        implied = asked is None and defaults.prefill_assistant and defaults.jinja and body.add_generation_prompt is None
        return bool(implied and last.role == "assistant" and given and not last.tool_calls)
    if body.add_generation_prompt:
        raise InvalidRequestError("contradicts add_generation_prompt", "continue_final_message")
    if not defaults.jinja:
        raise InvalidRequestError("this server's chat template cannot continue a message", "continue_final_message")
    if last.role != "assistant" or last.tool_calls:
        message = "the last message is not an assistant's text, so it cannot be continued"
        raise InvalidRequestError(message, "continue_final_message")
    return asked


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the messages in the form that templates rely on: arguments are JSON objects, results have names."""
    names = {call.id: call.function.name for message in messages for call in message.tool_calls or []}
    found = []
    for message in messages:
        entry = message.for_template()
        for call in entry.get("tool_calls", ()):
            call["function"]["arguments"] = _object(call["function"]["arguments"])
        if message.role == "tool" and "name" not in entry and message.tool_call_id in names:
            entry["name"] = names[message.tool_call_id]
        found.append(entry)
    return found


def _object(arguments: str) -> str:
    """Return arguments as an object, the only type that templates take. Anything else is put into an object."""
    with suppress(UnicodeEncodeError, ApiError):
        if isinstance(json_value(arguments.encode(), MAX_ARGUMENT_VALUES), dict):
            return arguments
    return json.dumps({"malformed": arguments} if arguments else {})
