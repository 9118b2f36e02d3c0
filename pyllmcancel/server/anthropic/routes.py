"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter

from pyllmcancel.server.anthropic.answer import STREAM_EVENTS, MessageAnswer, TokenCount
from pyllmcancel.server.anthropic.body import CountBody, MessagesBody
from pyllmcancel.server.anthropic.dialect import MessagesDialect
from pyllmcancel.server.anthropic.translation import chat_of, counted_chat
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.chat.turn import chat_length, chat_turn
from pyllmcancel.server.errors.shapes import ANTHROPIC
from pyllmcancel.server.generate import generate
from pyllmcancel.server.http.exchange import request_id_of
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, asks, errors
from pyllmcancel.server.wire.field_names import FieldNames

router = APIRouter(tags=["Anthropic"])
# Fields of a chat by the fields of a message that they are made of.
NAMES = {"response_format": "output_config", "stop": "stop_sequences", "n_predict": "max_tokens"}


@router.post(
    "/v1/messages",
    summary="Answer in a conversation, in Anthropic's format",
    openapi_extra=asks(MessagesBody),
    responses=answers(MessageAnswer, *STREAM_EVENTS, says_done=False, shape=ANTHROPIC) | errors(*GENERATION_ERRORS),
)
async def messages(incoming: Annotated[Incoming[MessagesBody], reads(MessagesBody)]) -> Any:
    http, state, body = incoming.http, incoming.state, incoming.body
    names = names_of(body)
    with names.in_errors():
        chat = incoming.asking(await incoming.prepare(lambda _pause: chat_of(body)), names)
        turn = await chat_turn(chat)
        dialect = MessagesDialect(
            f"msg_{request_id_of(http.scope)}",
            state.model_name,
            turn,
            stop_sequences=body.stop_sequences or (),
            eager_tools=[tool.name for _, tool in body.offered if tool.eager_input_streaming],
            n_ctx=state.n_ctx,
        )
        return await generate(chat, turn, dialect)


@router.post(
    "/v1/messages/count_tokens",
    summary="Count the tokens of a conversation, in Anthropic's format",
    openapi_extra=asks(CountBody),
    responses=answers(TokenCount) | errors(400, 413, 415, 503),
)
async def count_tokens(incoming: Annotated[Incoming[CountBody], reads(CountBody, alone=True)]) -> Any:
    body = incoming.body
    names = names_of(body)
    with names.in_errors():
        chat = incoming.asking(await incoming.prepare(lambda _pause: counted_chat(body)), names)
        return TokenCount(input_tokens=await chat_length(chat))


def names_of(body: CountBody) -> FieldNames:
    return FieldNames(NAMES, [f"tools[{place}]" for place, _ in body.offered], "input_schema")
