"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from pyllmcancel.server.bodies import BodyRoute, prepared
from pyllmcancel.server.openai.answer_forms import answer_constraint, visible_tokens
from pyllmcancel.server.openai.answers import ChatCompletion, ChatCompletionChunk, Completion, CompletionChunk
from pyllmcancel.server.openai.conversation import prompt_text
from pyllmcancel.server.openai.dialect import Sender
from pyllmcancel.server.openai.dialect_chat import ChatDialect
from pyllmcancel.server.openai.dialect_completion import CompletionDialect
from pyllmcancel.server.openai.logprobs import PromptText
from pyllmcancel.server.openai.params import (
    chat_params,
    check_chat,
    check_completion,
    completion_params,
    completion_prompts,
)
from pyllmcancel.server.openai.tool_plan import ToolPlan, tool_plan
from pyllmcancel.server.openai.wire import ChatBody, CompletionBody
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, errors
from pyllmcancel.server.request_context import request_id_of
from pyllmcancel.server.state import state_of
from pyllmcancel.server.submission import prompt_list, session_of, submit

if TYPE_CHECKING:
    from pyllmcancel.chat_template import ChatTemplate
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.tokens import TextReader

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=BodyRoute, responses=errors(*GENERATION_ERRORS))


@router.post("/completions", summary="Complete a text", responses=answers(Completion, CompletionChunk))
async def completions(request: Request, body: CompletionBody) -> Any:
    state = state_of(request)
    model = state.engine.model
    check_completion(body)
    prompts, echoes = await prepared(request, partial(read_prompts, state.texts, body))
    constraint = await answer_constraint(request, body)
    params = completion_params(body, state.config.request_defaults(), constraint)
    sender = Sender(request_id_of(request.scope), state.model_name, model)
    dialect = CompletionDialect(sender, body, len(prompts), echoes)
    return await submit(request, body, prompts, params, dialect)


def read_prompts(
    reader: TextReader, body: CompletionBody, pause: Pause
) -> tuple[list[Sequence[int]], list[PromptText]]:
    """The prompts' tokens, and what is echoed of them."""
    prompts = completion_prompts(reader, body, pause)
    echoes = []
    for given, tokens in zip(prompt_list(body.prompt), prompts, strict=True) if body.echo else ():
        pause()
        echoes.append(PromptText(reader.model, given, tokens))
    return prompts, echoes


@router.post(
    "/chat/completions", summary="Answer in a conversation", responses=answers(ChatCompletion, ChatCompletionChunk)
)
async def chat_completions(request: Request, body: ChatBody) -> Any:
    state = state_of(request)
    model = state.engine.model
    check_chat(body)
    # Off the event loop however short it is, and seen: what a template does is the model's.
    work = partial(read_chat, state.texts, state.chat_template, body)
    plan, tokens, visible = await state.preparations.run(request, work, session_of(request, body))
    constraint = await answer_constraint(request, body, plan)
    params = chat_params(body, state.config.request_defaults(), constraint, visible)
    tool_format = plan.format if plan is not None else None
    sender = Sender(request_id_of(request.scope), state.model_name, model)
    dialect = ChatDialect(sender, body, tool_format, visible)
    return await submit(request, body, [tokens], params, dialect)


def read_chat(
    reader: TextReader, template: ChatTemplate, body: ChatBody, pause: Pause
) -> tuple[ToolPlan | None, Sequence[int], frozenset[int]]:
    """Which tools may be called, the conversation's tokens, and the control tokens that are to be seen."""
    plan = tool_plan(body, template)
    text = prompt_text(body, template, plan, pause)
    pause()
    return plan, reader.chat(text, "messages", pause), visible_tokens(reader.model, plan)
