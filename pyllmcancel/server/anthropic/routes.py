"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter

from pyllmcancel.server.anthropic.answer import STREAM_EVENTS, MessageAnswer, TokenCount
from pyllmcancel.server.anthropic.body import CountBody, MessagesBody
from pyllmcancel.server.anthropic.dialect import MessagesDialect
from pyllmcancel.server.anthropic.translation import chat_of
from pyllmcancel.server.bodies import FieldNames, Incoming, reads
from pyllmcancel.server.chat.turn import chat_length, chat_turn
from pyllmcancel.server.errors.shapes import ANTHROPIC
from pyllmcancel.server.generate import generate
from pyllmcancel.server.openapi.description import answers

router = APIRouter(tags=["Anthropic"])
# Fields of a chat by the fields of a message that they are made of.
NAMES = {"response_format": "output_config", "stop": "stop_sequences", "n_predict": "max_tokens"}


@router.post(
    "/v1/messages",
    summary="Answer in a conversation, in Anthropic's format",
    responses=answers(MessageAnswer, *STREAM_EVENTS, says_done=False, shape=ANTHROPIC),
)
async def messages(incoming: Annotated[Incoming[MessagesBody], reads(MessagesBody)]) -> Any:
    names = names_of(incoming.body)
    with names.in_errors():
        chat = incoming.asking(await incoming.prepare(lambda _pause: chat_of(incoming.body)), names)
        turn = await chat_turn(chat)
        return await generate(turn, MessagesDialect(incoming, turn))


@router.post(
    "/v1/messages/count_tokens",
    summary="Count the tokens of a conversation, in Anthropic's format",
    responses=answers(TokenCount),
)
async def count_tokens(incoming: Annotated[Incoming[CountBody], reads(CountBody, alone=True)]) -> Any:
    names = names_of(incoming.body)
    with names.in_errors():
        chat = incoming.asking(await incoming.prepare(lambda _pause: chat_of(incoming.body)), names)
        return TokenCount(input_tokens=await chat_length(chat))


def names_of(body: CountBody) -> FieldNames:
    return FieldNames(NAMES, [f"tools[{place}]" for place, _ in body.offered], "input_schema")
