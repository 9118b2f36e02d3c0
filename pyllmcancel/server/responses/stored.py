"""Operations on an existing response."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.limits import MAX_TO_WORKERS
from pyllmcancel.server.responses.created import damaged
from pyllmcancel.server.responses.event_log import EventLog, read
from pyllmcancel.server.responses.input_items import AnyItem, Item
from pyllmcancel.server.responses.storage.database import DamagedResponseError
from pyllmcancel.server.responses.storage.rows import Part, are_items, said
from pyllmcancel.server.state import state_of
from pyllmcancel.shares import Remembered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import Request

    from pyllmcancel.server.responses.answer import DeletedResponse
    from pyllmcancel.server.responses.created import Ask, CreatedResponses
    from pyllmcancel.server.responses.storage.rows import Kept

ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])
MAX_HANDED = 64  # parts of conversations, each of `MAX_TO_WORKERS` at most
CANNOT_CANCEL = {
    "completed": "Cannot cancel a completed response.",
    "failed": "Cannot cancel a failed response.",
    "incomplete": "Cannot cancel an incomplete response.",
}


class Responses:
    """The responses that were created here, and parts of conversations that other workers have."""

    def __init__(self, created: CreatedResponses) -> None:
        self.created = created
        self._handed = Remembered[str, Part](MAX_HANDED)

    @property
    def full(self) -> bool:
        return self.created.full

    async def part(self, owner: str, response_id: str, *, items: bool) -> dict[str, Any]:
        """Return the conversation up to a response, and its output, as far as they are here, for another worker."""
        part = await self.created.part(owner, response_id, output=True)
        if items and part.n_bytes > MAX_TO_WORKERS:  # the limit includes instructions and tools
            check_carried(len(await asyncio.to_thread(said, part.items)), "the conversation up to this response")
        return {"items": part.items if items else [], "missing": part.missing}

    def have(self, owner: str, response_id: str, items: list[dict[str, Any]], missing: str | None) -> None:
        """Keep a part of a conversation for the next request that goes on from it."""
        if not are_items(items) or missing == response_id:
            raise ApiError(400, "this is no part of a conversation", param="items", code="invalid_request")
        self._handed.put(owner, response_id, Part(items, missing, len(said(items))))

    def handed(self, owner: str, response_id: str) -> Part | None:
        """Return a part that another worker has, and that was handed over before."""
        return self._handed.pop(owner, response_id)


def created_responses(request: Request) -> CreatedResponses:
    """The responses of this server, for its clients."""
    responses = state_of(request).responses
    assert isinstance(responses, Responses)
    return responses.created


async def cancelled(created: CreatedResponses, owner: str, response_id: str) -> dict[str, Any]:
    """Return the response's state after its cancel."""
    background = created.find(owner, response_id)
    if background is not None:
        background.cancel()
        await background.ended.wait()
        response = background.response()
        check_cancelled(response["status"])
        return {**response}
    kept = await created.kept(owner, response_id)
    if not kept.background:
        raise ApiError(400, "Cannot cancel a synchronous response.", param="response_id")
    check_cancelled(kept.status)
    return as_dict(kept.response)


def check_cancelled(status: str) -> None:
    """Raise ApiError, in OpenAI's words, for a response that was not cancelled but has ended."""
    if status != "cancelled":
        raise ApiError(400, CANNOT_CANCEL[status], param="response_id")


def deleted(response_id: str) -> DeletedResponse:
    return {"id": response_id, "object": "response", "deleted": True}


def check_carried(n_bytes: int, what: str) -> None:
    """Raise ApiError for data that are too long to be sent to another worker."""
    if n_bytes > MAX_TO_WORKERS:
        message = f"{what} is on another worker, and longer than the {MAX_TO_WORKERS:,} bytes that one sends another"
        raise ApiError(400, message, code="elsewhere")


def log_of(kept: Kept, response_id: str) -> EventLog:
    """Return the log of a response that has ended; ApiError if it is damaged."""
    try:
        return EventLog(*read(kept, response_id))
    except DamagedResponseError:
        raise damaged(response_id) from None


def read_items(items: Sequence[Mapping[str, Any]], name: str) -> list[AnyItem]:
    """Return items that were stored under this name; ApiError if they are invalid."""
    try:
        return ITEMS.validate_python(items)
    except ValidationError:  # its text contains pieces of the items
        raise damaged(name) from None


def as_dict(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def asking(request: Request) -> Ask:
    """Return a function that finds a part of a conversation which the front has brought from another worker."""
    responses, owner = state_of(request).responses, owner_of(request.scope)
    assert isinstance(responses, Responses)

    async def ask(response_id: str, _output: bool) -> Part | None:
        return responses.handed(owner, response_id)

    return ask
