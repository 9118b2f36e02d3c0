"""``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter

from pyllmcancel.pausing import Pause
from pyllmcancel.server.behind import WorkerLink
from pyllmcancel.server.bodies import FieldNames, Incoming, reads
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.turn import ChatTurn, chat_turn
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.generate import generate, submit
from pyllmcancel.server.http.exchange import Exchange
from pyllmcancel.server.limits import MAX_MESSAGES
from pyllmcancel.server.openapi.description import answers, errors
from pyllmcancel.server.responses.answer import RESPONSE_PREFIX, InputTokens, ResponseAnswer, ResponseEvent
from pyllmcancel.server.responses.body import ENCRYPTED, RENAMED, ResponsesBody
from pyllmcancel.server.responses.dialect import ResponsesDialect, head_of
from pyllmcancel.server.responses.input_items import AnyItem, ReferenceItem, kept
from pyllmcancel.server.responses.output import Output
from pyllmcancel.server.responses.storage.database import id_taken
from pyllmcancel.server.responses.stored import read_items, responses_of
from pyllmcancel.server.responses.tools import ToolTable
from pyllmcancel.server.streams.reading import KeptResponse

router = APIRouter(tags=["OpenAI"], responses=errors(507))


@router.post(
    "/v1/responses",
    summary="Answer with reasoning, text and calls as items",
    responses=answers(ResponseAnswer, ResponseEvent, says_done=False),
)
@router.post("/responses", include_in_schema=False)
async def create_response(incoming: Annotated[Incoming[ResponsesBody], reads(ResponsesBody)]) -> Any:
    request, body, exchange = incoming.http, incoming.body, incoming.exchange
    stored = await will_be_stored(incoming)
    table = body.table()
    body.note_passed_over(table)
    names = names_of(table)
    with names.in_errors():
        items, chat = await conversation_of(incoming, table, names)
        turn = await chat_turn(chat)
        output = Output(head_of(incoming, turn, stored=stored), table, encrypts=body.includes(ENCRYPTED))
        dialect = ResponsesDialect(output, chat.state.engine.model, turn, queued=bool(body.background))
        input_items = kept(items, exchange.request_id)
        if body.background:
            return await in_background(chat, turn, dialect, input_items, stream=body.stream)
        if stored:
            keep = responses_of(request).keep
            dialect.store = partial(keep, exchange.owner, input_items, replaces=begins_anew(exchange))
        return await generate(turn, dialect)


@router.post("/v1/responses/input_tokens", summary="Count the tokens of an input", responses=answers(InputTokens))
async def count_input_tokens(incoming: Annotated[Incoming[ResponsesBody], reads(ResponsesBody)]) -> Any:
    table = incoming.body.table()
    names = names_of(table)
    with names.in_errors():
        _, chat = await conversation_of(incoming, table, names)
        turn = await chat_turn(chat)
    return InputTokens(object="response.input_tokens", input_tokens=len(turn.prompts[0]))


def names_of(table: ToolTable) -> FieldNames:
    return FieldNames(RENAMED, table.places)


async def in_background(
    chat: Incoming[ChatBody], turn: ChatTurn, dialect: ResponsesDialect, items: Sequence[Any], *, stream: bool
) -> Any:
    """Answer after the response's beginning has been stored."""
    chat.request.client = None  # the client may leave
    submitted = await submit(turn)
    background = await responses_of(chat.http).begin(submitted, dialect, items, replaces=begins_anew(chat.exchange))
    if stream:
        return KeptResponse(background, ping_interval=chat.state.config.sse_ping_interval)
    return background.response()


async def will_be_stored(incoming: Incoming[ResponsesBody]) -> bool:
    """Raise ApiError for a response that has to be stored, and cannot be."""
    request, body, exchange = incoming.http, incoming.body, incoming.exchange
    responses = responses_of(request)
    if not responses.stores:
        if body.background:
            message = "this server stores nothing (--store off), so it cannot generate responses in the background"
            raise ApiError(400, message, param="background", code="unsupported_field")
        if body.store:
            body.ignore("store")
        return False
    if body.store is False or body.prefetch:
        return False
    response_id = f"{RESPONSE_PREFIX}{exchange.request_id}"
    # An id that the server has made is new.
    may_exist = "x-request-id" in request.headers and not begins_anew(exchange)
    if may_exist and await responses.exists(exchange.owner, response_id):
        raise id_taken()
    return True


def begins_anew(exchange: Exchange) -> bool:
    """Return whether a process has accepted the request before, which may have stored something of it here."""
    link: WorkerLink | None = exchange.link
    return link is not None and link.is_again


async def conversation_of(
    incoming: Incoming[ResponsesBody], table: ToolTable, names: FieldNames
) -> tuple[list[AnyItem], Incoming[ChatBody]]:
    """Return the input's items, with those that they refer to, and the chat that they continue."""
    request, body = incoming.http, incoming.body
    responses, owner = responses_of(request), incoming.exchange.owner
    before: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        before = await responses.history(owner, body.previous_response_id)
    references = body.references
    referred = await responses.items(owner, references)

    def translated(pause: Pause) -> tuple[list[AnyItem], ChatBody]:
        following = iter(read_items([referred[name] for name in references], ", ".join(references)))
        items = [next(following) if isinstance(item, ReferenceItem) else item for item in body.items]
        pause()
        history = read_items(before, body.previous_response_id or "")
        pause()
        if len(history) + len(items) > MAX_MESSAGES:
            raise ApiError(400, f"the conversation has more than {MAX_MESSAGES:,} items", param="input")
        return items, body.chat(table, [*history, *items])

    if before:  # the conversation may be long, though the body is short
        items, chat = await incoming.prepare(translated, incoming.state.workers)
    else:
        items, chat = await incoming.prepare(translated)
    return items, incoming.asking(chat, names)
