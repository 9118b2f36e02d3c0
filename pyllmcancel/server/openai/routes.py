"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from pyllmcancel.choices import room_after
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
from pyllmcancel.server.openai.tool_plan import tool_plan
from pyllmcancel.server.openai.wire import ChatBody, CompletionBody
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, errors
from pyllmcancel.server.request_context import request_id_of
from pyllmcancel.server.state import state_of
from pyllmcancel.server.submission import check_tokens, prompt_list, submit, tokenize_chat

router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=errors(*GENERATION_ERRORS))


@router.post("/completions", summary="Complete a text", responses=answers(Completion, CompletionChunk))
async def completions(request: Request, body: CompletionBody) -> Any:
    state = state_of(request)
    model = state.engine.model
    check_completion(body)
    prompts = await completion_prompts(state.engine, body)
    for tokens in prompts:
        check_tokens(tokens, model.n_vocab, "prompt")
        if tokens:
            room_after(tokens, state.engine.n_ctx)  # before anybody spells out what has no room
    constraint = await answer_constraint(state, body)
    params = completion_params(body, state.config.request_defaults(), constraint)
    echoed = zip(prompt_list(body.prompt), prompts, strict=True) if body.echo else ()
    shown = [PromptText(model, given, tokens) for given, tokens in echoed]
    sender = Sender(request_id_of(request.scope), state.model_name, model)
    dialect = CompletionDialect(sender, body, len(prompts), shown)
    return await submit(request, body, prompts, params, dialect)


@router.post(
    "/chat/completions", summary="Answer in a conversation", responses=answers(ChatCompletion, ChatCompletionChunk)
)
async def chat_completions(request: Request, body: ChatBody) -> Any:
    state = state_of(request)
    model = state.engine.model
    check_chat(body)
    plan = tool_plan(body, state.chat_template)
    tokens = await tokenize_chat(state.engine, prompt_text(body, state.chat_template, plan))
    constraint = await answer_constraint(state, body, plan)
    visible = visible_tokens(model, plan)
    params = chat_params(body, state.config.request_defaults(), constraint, visible)
    tool_format = plan.format if plan is not None else None
    sender = Sender(request_id_of(request.scope), state.model_name, model)
    dialect = ChatDialect(sender, body, tool_format, visible)
    return await submit(request, body, [tokens], params, dialect)
