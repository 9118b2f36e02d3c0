"""llama-server's own endpoints that generate, tokenize, and render chat templates: what editors' plug-ins use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from pyllmcancel.chat.infill import Gap, Snippet, infill_prompt
from pyllmcancel.constraints.bounded import NamedSchema
from pyllmcancel.engine.choices import check_count
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.answer_events import EngineResponse
from pyllmcancel.server.answer_form import answer_constraint
from pyllmcancel.server.bodies import UNCHANGED, Incoming, reads
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.turn import chat_length, render
from pyllmcancel.server.errors.shapes import LLAMA
from pyllmcancel.server.generate import Plan, generate
from pyllmcancel.server.limits import MAX_PROMPTS
from pyllmcancel.server.llama.answer import CompletionAnswer, CompletionEvent, LlamaDialect
from pyllmcancel.server.llama.body import DetokenizeBody, InfillBody, LlamaCompletionBody, TokenizeBody
from pyllmcancel.server.llama.params import (
    all_settings_json,
    asked_settings,
    generation_params,
    read_prompts,
    tokens_of,
)
from pyllmcancel.server.media.gathering import Gathered, check_asked, given_in
from pyllmcancel.server.openapi.description import answers
from pyllmcancel.server.streams.reading import KeptResponse
from pyllmcancel.server.wire.fields import Answer
from pyllmcancel.server.wire.form import ANY_OBJECT
from pyllmcancel.server.wire.tokens import check_tokens, text_of

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.pausing import FlaggedPause, Pause
    from pyllmcancel.server.http.workers import Workers
    from pyllmcancel.server.llama.body import AnsweringBody
    from pyllmcancel.server.wire.tokens import TextReader

router = APIRouter(tags=["llama-server"])
GENERATED = answers(
    CompletionAnswer | list[CompletionAnswer], CompletionEvent, CompletionAnswer, says_done=False, shape=LLAMA
)
UNLIMITED_RESERVE = 256  # tokens that an infill without n_predict leaves for its answer


class TokenPiece(Answer):
    id: int
    piece: Annotated[
        str | list[int], Field(description="The text, or bytes if the token is only a part of a character.")
    ]


class TokensAnswer(Answer):
    tokens: list[int] | list[TokenPiece]


class TextAnswer(Answer):
    content: str


class TokenCount(Answer):
    object: Literal["response.input_tokens"]
    input_tokens: int


class PromptAnswer(Answer):
    prompt: str


@router.post("/completion", summary="Complete a text, in llama-server's format", responses=GENERATED)
@router.post("/completions", include_in_schema=False)
async def completion(incoming: Annotated[Incoming[LlamaCompletionBody], reads(LlamaCompletionBody)]) -> Any:
    state, body = incoming.state, incoming.body
    given = body.prompts()
    if not given:
        raise InvalidRequestError("the prompt is empty", "prompt")
    if len(given) > MAX_PROMPTS:  # the type cannot express this limit: a list of texts may be one prompt
        raise InvalidRequestError(f"a request may have at most {MAX_PROMPTS} prompts", "prompt")
    check_count(len(given), body.n_cmpl)
    prompts = await read_prompts(incoming, given)
    workers = state.decoders if any(prompt.media for prompt in prompts) else None
    return await respond(incoming, lambda pause: [tokens_of(state, prompt, pause) for prompt in prompts], workers)


@router.post("/infill", summary="Fill a gap in a text, as editors ask for it", responses=GENERATED)
async def infill(incoming: Annotated[Incoming[InfillBody], reads(InfillBody)]) -> Any:
    texts, body = incoming.state.texts, incoming.body
    return await respond(incoming, lambda pause: [gap_tokens(texts, body, pause)])


def gap_tokens(texts: TextReader, body: InfillBody, pause: Pause) -> list[int]:
    """Return the prompt's tokens for a gap: the texts around it, as far as there is room for them."""
    before, after = body.input_prefix, body.input_suffix
    for part, param in ((before, "input_prefix"), (after, "input_suffix")):
        if not isinstance(part, str):
            texts.check_mixed(part, param)
    before = texts.end_of(before + body.prompt) if isinstance(before, str) else [*before, texts.end_of(body.prompt)]
    after = texts.beginning_of(after) if isinstance(after, str) else after
    gap = Gap(
        texts.mixed(before, "input_prefix", pause, add_special=False, parse_special=False, must_fit=False),
        texts.mixed(after, "input_suffix", pause, add_special=False, parse_special=False, must_fit=False),
    )
    snippets = [Snippet(extra.filename, extra.text) for extra in body.input_extra]
    reserve = body.n_predict if body.n_predict >= 0 else UNLIMITED_RESERVE
    room = texts.n_ctx - min(max(reserve, 1), texts.n_ctx // 2)
    return infill_prompt(texts.model, gap, snippets, room, pause)


async def respond(
    incoming: Incoming[AnsweringBody],
    tokens: Callable[[FlaggedPause], Sequence[Sequence[int]]],
    workers: Workers | None = None,
) -> EngineResponse | KeptResponse:
    """Prepare a request in one piece of work (see `Incoming.prepare`), and answer in the requested form. `tokens`
    returns its prompts.
    """
    state, body = incoming.state, incoming.body
    # In llama-server, a request for JSON without a schema asks for an object.
    schema = body.json_schema
    form = None if schema is None else NamedSchema(schema or ANY_OBJECT, "json_schema", lenient=True)

    def read(pause: FlaggedPause) -> Plan:
        prompts = tokens(pause)
        params = generation_params(state, body, pause)
        constraint, unenforced = answer_constraint(state, form, pause)
        return Plan(incoming, prompts, replace(params, constraint=constraint), UNCHANGED, unenforced)

    # A schema is compiled with the prompts, so it does not use the threads that read bodies.
    plan = await incoming.prepare(read, workers or (None if form is None else state.preparers))
    incoming.note_unenforced(plan.unenforced)
    eog_tokens = state.eog_tokens if body.ignore_eos else ()
    settings = partial(all_settings_json, plan.params, state.engine.draft_sources, asked_settings(body), eog_tokens)
    return await generate(plan, LlamaDialect(incoming, settings))


@router.post("/tokenize", summary="The tokens of a text", responses=answers(TokensAnswer))
async def tokenize(incoming: Annotated[Incoming[TokenizeBody], reads(TokenizeBody)]) -> Response:
    texts, body = incoming.state.texts, incoming.body

    def work(pause: Pause) -> Response:
        texts.check_mixed(body.content, "content")
        options = {"add_special": body.add_special, "parse_special": body.parse_special}
        tokens = texts.mixed(body.content, "content", pause, **options, must_fit=False)
        check_tokens(tokens, texts.model.n_vocab, "content")
        return JSONResponse(TokensAnswer(tokens=with_pieces(texts.model, tokens) if body.with_pieces else tokens))

    return await incoming.prepare(work)


@router.post("/detokenize", summary="The text of tokens", responses=answers(TextAnswer))
async def detokenize(incoming: Annotated[Incoming[DetokenizeBody], reads(DetokenizeBody)]) -> Response:
    model, body = incoming.state.engine.model, incoming.body

    def work(_pause: Pause) -> Response:
        check_tokens(body.tokens, model.n_vocab, "tokens")
        return JSONResponse(TextAnswer(content=text_of(model, body.tokens)))

    return await incoming.prepare(work)


@router.post("/apply-template", summary="The prompt that is made of a conversation", responses=answers(PromptAnswer))
async def apply_template(incoming: Annotated[Incoming[ChatBody], reads(ChatBody, alone=True)]) -> Response:
    state, given = incoming.state, given_in(incoming.body)
    check_asked(state, Gathered(given, "messages", incoming.request.owner))

    def work(pause: Pause) -> Response:
        prompt = render(state, incoming.body, incoming.request.owner, pause).prompt
        for one in given:
            prompt = prompt.replace(one.marker, state.media_marker)
        return JSONResponse(PromptAnswer(prompt=prompt))

    return await incoming.prepare(work, state.preparers)


@router.post(
    "/v1/chat/completions/input_tokens", summary="Count the tokens of a conversation", responses=answers(TokenCount)
)
@router.post("/chat/completions/input_tokens", include_in_schema=False)
async def count_tokens(incoming: Annotated[Incoming[ChatBody], reads(ChatBody, alone=True)]) -> Any:
    return TokenCount(object="response.input_tokens", input_tokens=await chat_length(incoming))


def with_pieces(model: Model, tokens: Sequence[int]) -> list[TokenPiece]:
    return [{"id": token, "piece": piece_json(model.piece(token, special=True))} for token in tokens]


def piece_json(piece: bytes) -> str | list[int]:
    """Return the text, or bytes if the token is only a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
