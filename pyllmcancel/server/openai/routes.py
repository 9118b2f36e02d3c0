"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter

from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.turn import chat_turn
from pyllmcancel.server.generate import generate
from pyllmcancel.server.openai.chat_answer import ChatCompletion, ChatCompletionChunk, ChatDialect
from pyllmcancel.server.openai.completion_answer import Completion, CompletionChunk, CompletionDialect
from pyllmcancel.server.openai.completion_body import CompletionBody, read_completion
from pyllmcancel.server.openapi.description import answers
from pyllmcancel.server.wire.form import Gbnf

router = APIRouter(tags=["OpenAI"])


@router.post("/v1/completions", summary="Complete a text", responses=answers(Completion, CompletionChunk))
async def completions(incoming: Annotated[Incoming[CompletionBody], reads(CompletionBody)]) -> Any:
    # A schema is compiled with the prompts, so it does not use the threads that read bodies.
    workers = None if isinstance(incoming.body.form, Gbnf | None) else incoming.state.preparers
    plan = await incoming.prepare(partial(read_completion, incoming), workers)
    incoming.note_unenforced(plan.unenforced)
    return await generate(plan, CompletionDialect(incoming, len(plan.prompts), plan.echoes))


@router.post(
    "/v1/chat/completions", summary="Answer in a conversation", responses=answers(ChatCompletion, ChatCompletionChunk)
)
@router.post("/chat/completions", include_in_schema=False)  # llama-server has it without a version, too
async def chat_completions(incoming: Annotated[Incoming[ChatBody], reads(ChatBody)]) -> Any:
    turn = await chat_turn(incoming)
    return await generate(turn, ChatDialect(incoming, turn))
