"""``/v1/completions``, ``/v1/chat/completions`` and ``/v1/models``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.dialect_openai import ChatDialect, CompletionDialect, OpenAIDialect
from pyllmcancel.server.generation_response import EventStreamResponse, GenerationResponse, WholeResponse
from pyllmcancel.server.request_context import request_id_of
from pyllmcancel.server.state import ServerState
from pyllmcancel.server.wire_openai import MAX_SESSION_ID, ChatBody, CompletionBody, GenerationBody
from pyllmcancel.token_stream import AsyncStream, LoopSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel.engine import Engine
    from pyllmcancel.request import GenerationParams

router = APIRouter(prefix="/v1", tags=["OpenAI"])

# Longer texts are tokenized in a thread: the event loop must notice disconnects meanwhile.
INLINE_TEXT = 20_000


def state_of(request: Request) -> ServerState:
    state: ServerState = request.app.state.server
    return state


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
    """Submit, and answer in the form that was asked for. The engine's errors pass through to the handlers."""
    state = state_of(request)
    sink = LoopSink(asyncio.get_running_loop())
    accepted = state.engine.submit(
        prompts, params, sink, request_id=request_id_of(request.scope), session=session_of(request, body)
    )
    stream = AsyncStream(accepted, state.engine, sink)
    dialect = dialect_class(
        accepted.id,
        state.model_name,
        len(accepted.choices),
        state.engine.model.piece,
        include_usage=body.includes_usage,
    )
    return (EventStreamResponse if body.stream else WholeResponse)(stream, dialect)


def session_of(request: Request, body: GenerationBody) -> str | None:
    """The session a request names, or belongs to by ``--session-by``; the kinds cannot be mistaken for each other."""
    session_by = state_of(request).config.session_by
    named = request.headers.get("x-session-id") or body.session_id
    if named:
        refuse_session_of_others(named, session_by)
        return named
    match session_by:
        case "user":
            user = body.user or body.safety_identifier or body.prompt_cache_key
            return f"user:{user}" if user else None
        case "client-ip":
            return f"ip:{request.client.host}" if request.client is not None else None
        case _:
            return None


def refuse_session_of_others(named: str, session_by: str) -> None:
    """A client that could name the session of another user, or address, could cancel the requests of it."""
    reserved = {"user": "user:", "client-ip": "ip:"}.get(session_by)
    if reserved is not None and named.startswith(reserved):
        raise InvalidRequestError(f"names of sessions cannot begin with {reserved} here", "session_id")
    if len(named) > MAX_SESSION_ID:
        raise InvalidRequestError(f"a session id has at most {MAX_SESSION_ID} characters", "session_id")


def prompt_list(prompt: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequestError("the prompt is empty", "prompt")
    if isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


async def tokenize(engine: Engine, prompt: str | list[int], **options: bool) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    if len(prompt) <= INLINE_TEXT:
        return engine.model.tokenize(prompt, **options)
    return await asyncio.to_thread(engine.model.tokenize, prompt, **options)


async def tokenize_chat(engine: Engine, text: str) -> Sequence[int]:
    """A rendered template has its special tokens as text, often the first one (bos) too: it must not stand twice."""
    tokens = await tokenize(engine, text, add_special=True, parse_special=True)
    bos = engine.model.special_tokens.get("bos")
    return tokens[1:] if list(tokens[:2]) == [bos, bos] else tokens
