"""llama-server's own endpoints that generate, and those about texts and tokens: what editors' plug-ins speak."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request

from pyllmcancel.constraints.guidance import json_rule
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.infill import Gap, Snippet, infill_prompt
from pyllmcancel.server.generation_response import GenerationResponse
from pyllmcancel.server.llama.answers import (
    CompletionAnswer,
    CompletionEvent,
    PromptAnswer,
    TextAnswer,
    TokenCount,
    TokensAnswer,
)
from pyllmcancel.server.llama.dialect import LlamaDialect
from pyllmcancel.server.llama.params import (
    all_settings_json,
    check_lora,
    generation_params,
    mixed_tokens,
    prompt_tokens,
    text_of,
)
from pyllmcancel.server.llama.wire import CompletionBody, DetokenizeBody, InfillBody, TokenizeBody
from pyllmcancel.server.openai.conversation import prompt_text
from pyllmcancel.server.openai.routes import chat_completions
from pyllmcancel.server.openai.tool_plan import tool_plan
from pyllmcancel.server.openai.wire import ChatBody
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, errors
from pyllmcancel.server.state import state_of
from pyllmcancel.server.submission import check_tokens, submit, tokenize_chat

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.constraints.guidance import Guidance
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.server.llama.wire import AnsweringBody
    from pyllmcancel.server.state import ServerState

router = APIRouter(tags=["llama-server"])
GENERATES: dict[str, Any] = {
    "responses": answers(CompletionAnswer | list[CompletionAnswer], CompletionEvent, CompletionAnswer, says_done=False)
    | errors(*GENERATION_ERRORS)
}
LONG = 20_000  # tokens; more of them are spelled out in a thread
UNLIMITED_RESERVE = 256  # tokens that an infill without n_predict leaves for its answer


@router.post("/completion", summary="Complete a text, in llama-server's words", **GENERATES)
@router.post("/completions", include_in_schema=False)
async def completion(request: Request, body: CompletionBody) -> Any:
    model = state_of(request).engine.model
    prompts = [await prompt_tokens(model, prompt) for prompt in body.prompts()]
    if not prompts:
        raise InvalidRequestError("the prompt is empty", "prompt")
    return await respond(request, body, prompts)


@router.post("/infill", summary="Fill a gap in a text, as editors ask for it", **GENERATES)
async def infill(request: Request, body: InfillBody) -> Any:
    engine = state_of(request).engine
    before = body.input_prefix
    before = before + body.prompt if isinstance(before, str) else [*before, body.prompt]
    plain = {"add_special": False, "parse_special": False}
    gap = Gap(
        await mixed_tokens(engine.model, before, **plain), await mixed_tokens(engine.model, body.input_suffix, **plain)
    )
    snippets = [Snippet(extra.filename, extra.text) for extra in body.input_extra]
    reserve = body.n_predict if body.n_predict >= 0 else UNLIMITED_RESERVE
    room = engine.n_ctx - min(max(reserve, 1), engine.n_ctx // 2)
    tokens = await asyncio.to_thread(infill_prompt, engine.model, gap, snippets, room)
    return await respond(request, body, [tokens])


async def respond(request: Request, body: AnsweringBody, prompts: Sequence[Sequence[int]]) -> GenerationResponse:
    """Submit, and answer in the form that was asked for."""
    state = state_of(request)
    engine = state.engine
    check_lora(body.lora, engine.config)
    constraint = await constraint_of(state, body)
    params = generation_params(body, state.config.request_defaults(), engine.model, constraint)
    n_predict = state.config.limited(params.max_tokens)
    eog_tokens = state.eog_tokens if body.ignore_eos else ()
    dialect = LlamaDialect(
        body, engine, state.model_name, lambda: all_settings_json(params, n_predict, body, eog_tokens)
    )
    response = await submit(request, body, prompts, params, dialect, ping_interval=body.sse_ping_interval)
    # Before its first delta: the engine's thread posts them, this event loop reads them later.
    dialect.follow(response.generation)
    return response


async def constraint_of(state: ServerState, body: AnsweringBody) -> ConstraintFactory | None:
    """What the JSON schema allows. A grammar is llama.cpp's own, and part of the sampling."""
    schema = body.json_schema
    if schema is None:
        return None
    # llama-server: no schema in particular asks for an object.
    return await asyncio.to_thread(compiled, state.guidance, schema if schema != {} else {"type": "object"})


def compiled(guidance: Guidance, schema: dict[str, Any]) -> ConstraintFactory:
    """Takes its time: in a thread."""
    guidance.check_schema(schema, "json_schema")
    return guidance.compile(f"start: {json_rule(schema)}", "json_schema")


@router.post("/tokenize", summary="The tokens of a text", responses=answers(TokensAnswer) | errors(400, 413, 415, 503))
async def tokenize(request: Request, body: TokenizeBody) -> dict[str, Any]:
    model = state_of(request).engine.model
    options = {"add_special": body.add_special, "parse_special": body.parse_special}
    tokens = await mixed_tokens(model, body.content, **options)
    check_tokens(tokens, model.n_vocab, "content")
    if not body.with_pieces:
        return {"tokens": tokens}
    if len(tokens) <= LONG:
        return {"tokens": with_pieces(model, tokens)}
    return {"tokens": await asyncio.to_thread(with_pieces, model, tokens)}


@router.post("/detokenize", summary="The text of tokens", responses=answers(TextAnswer) | errors(400, 413, 415, 503))
async def detokenize(request: Request, body: DetokenizeBody) -> dict[str, Any]:
    model = state_of(request).engine.model
    check_tokens(body.tokens, model.n_vocab, "tokens")
    if len(body.tokens) <= LONG:
        return {"content": text_of(model, body.tokens)}
    return {"content": await asyncio.to_thread(text_of, model, body.tokens)}


@router.post(
    "/apply-template",
    summary="The prompt that a conversation becomes",
    responses=answers(PromptAnswer) | errors(400, 413, 415, 503),
)
async def apply_template(request: Request, body: ChatBody) -> dict[str, Any]:
    template = state_of(request).chat_template
    return {"prompt": prompt_text(body, template, tool_plan(body, template))}


@router.post(
    "/v1/chat/completions/input_tokens",
    summary="How many tokens a conversation has",
    responses=answers(TokenCount) | errors(400, 413, 415, 503),
)
@router.post("/chat/completions/input_tokens", include_in_schema=False)
async def count_tokens(request: Request, body: ChatBody) -> dict[str, Any]:
    state = state_of(request)
    text = prompt_text(body, state.chat_template, tool_plan(body, state.chat_template))
    return {"object": "response.input_tokens", "input_tokens": len(await tokenize_chat(state.engine, text))}


# llama-server has it without a version, too.
router.add_api_route("/chat/completions", chat_completions, methods=["POST"], include_in_schema=False)


def with_pieces(model: Model, tokens: Sequence[int]) -> list[dict[str, Any]]:
    return [{"id": token, "piece": piece_json(model.piece(token, special=True))} for token in tokens]


def piece_json(piece: bytes) -> str | list[int]:
    """Text, or bytes where that is only a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
