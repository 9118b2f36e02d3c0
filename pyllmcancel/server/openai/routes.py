"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request

from pyllmcancel.server.answer_form import answer_constraint
from pyllmcancel.server.bodies import BodyRoute, prepared
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.prompt import read_chat
from pyllmcancel.server.generate import generate
from pyllmcancel.server.openai.answer import envelope_of
from pyllmcancel.server.openai.chat_answer import ChatCompletion, ChatCompletionChunk, ChatDialect
from pyllmcancel.server.openai.completion_answer import Completion, CompletionChunk, CompletionDialect
from pyllmcancel.server.openai.completion_body import CompletionBody, read_prompts
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, errors
from pyllmcancel.server.origin import origin_of
from pyllmcancel.server.state import state_of

router = APIRouter(tags=["OpenAI"], route_class=BodyRoute, responses=errors(*GENERATION_ERRORS))


@router.post("/v1/completions", summary="Complete a text", responses=answers(Completion, CompletionChunk))
async def completions(request: Request, body: CompletionBody) -> Any:
    state = state_of(request)
    model = state.engine.model
    body.check()
    prompts, echoes = await prepared(request, partial(read_prompts, state.texts, body))
    constraint = await answer_constraint(request, body, body.answer_schema())
    params = body.generation_params(state.config.request_defaults(), constraint)
    dialect = CompletionDialect(envelope_of(request, "cmpl-"), model, body, len(prompts), echoes)
    return await generate(request, body, prompts, params, dialect)


@router.post(
    "/v1/chat/completions", summary="Answer in a conversation", responses=answers(ChatCompletion, ChatCompletionChunk)
)
@router.post("/chat/completions", include_in_schema=False)  # llama-server has it without a version, too
async def chat_completions(request: Request, body: ChatBody) -> Any:
    state = state_of(request)
    model = state.engine.model
    body.check()
    # Off the event loop however short it is, and seen: what a template does is the model's.
    work = partial(read_chat, state.texts, state.chat_template, body)
    plan, tokens, visible = await state.preparations.run(request, work, origin_of(request, body))
    constraint = await answer_constraint(request, body, body.answer_schema(calls=plan is not None), plan)
    params = body.generation_params(state.config.request_defaults(), constraint, visible)
    dialect = ChatDialect(envelope_of(request, "chatcmpl-"), model, body, plan, visible)
    return await generate(request, body, [tokens], params, dialect)
