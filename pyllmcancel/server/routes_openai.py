"""``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request

from pyllmcancel.request import GenerationParams
from pyllmcancel.server.dialect_openai import ChatDialect, CompletionDialect, OpenAIDialect
from pyllmcancel.server.generation_response import GenerationResponse
from pyllmcancel.server.request_context import request_id_of
from pyllmcancel.server.state import state_of
from pyllmcancel.server.submission import prompt_list, submit, tokenize, tokenize_chat
from pyllmcancel.server.wire_openai import ChatBody, CompletionBody, GenerationBody

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.post("/completions", summary="Complete a text")
async def completions(request: Request, body: CompletionBody) -> Any:
    engine = state_of(request).engine
    prompts = [await tokenize(engine, prompt) for prompt in prompt_list(body.prompt)]
    params = body.params(state_of(request).config.sampling, body.logprobs, body.max_tokens)
    return respond(request, body, prompts, params, CompletionDialect)


@router.post("/chat/completions", summary="Answer in a conversation")
async def chat_completions(request: Request, body: ChatBody) -> Any:
    state = state_of(request)
    engine = state.engine
    text = state.chat_template.render([message.for_template() for message in body.messages])
    tokens = await tokenize_chat(engine, text)
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    params = body.params(state.config.sampling, body.n_logprobs, max_tokens)
    return respond(request, body, [tokens], params, ChatDialect)


@router.get("/models", summary="The model that is served, and its facts")
async def models(request: Request) -> dict[str, Any]:
    state = state_of(request)
    model = state.engine.model
    meta = {
        "description": model.description,
        "n_params": model.n_params,
        "size": model.size,
        "n_ctx_train": model.n_ctx_train,
        "n_ctx": state.engine.n_ctx,
        "n_embd": model.n_embd,
        "n_vocab": model.n_vocab,
        "memory_kind": model.memory_kind,
    }
    entry = {"id": state.model_name, "object": "model", "created": state.created, "owned_by": "pyllmcancel"}
    return {"object": "list", "data": [entry | {"meta": meta}]}


def respond(
    request: Request,
    body: GenerationBody,
    prompts: Sequence[Sequence[int]],
    params: GenerationParams,
    dialect_class: type[OpenAIDialect],
) -> GenerationResponse:
    """Submit, and answer in the form that was asked for."""
    state = state_of(request)
    dialect = dialect_class(
        request_id_of(request.scope),
        state.model_name,
        len(prompts) * params.n,
        state.engine.model.piece,
        include_usage=body.includes_usage,
    )
    return submit(request, body, prompts, params, dialect)
