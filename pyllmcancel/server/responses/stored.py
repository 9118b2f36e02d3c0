"""Operations on an existing response: here or, if this server has peers, on the peer that has the response."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

from pydantic import TypeAdapter, ValidationError

from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.limits import MAX_NAME, MAX_TO_PEERS
from pyllmcancel.server.requests.fleet import fleet_view
from pyllmcancel.server.requests.visible import Visible
from pyllmcancel.server.responses.created import damaged, not_found
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
    from pyllmcancel.server.state import Asked

ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])
MAX_HANDED = 64  # parts of conversations, each of `MAX_TO_PEERS` at most
CANNOT_CANCEL = {
    "completed": "Cannot cancel a completed response.",
    "failed": "Cannot cancel a failed response.",
    "incomplete": "Cannot cancel an incomplete response.",
}


class Responses:
    """The responses that were created here: `created` for clients of this server, `act` for other servers."""

    def __init__(self, created: CreatedResponses) -> None:
        self.created = created
        self._handed = Remembered[str, Part](MAX_HANDED)

    @property
    def full(self) -> bool:
        return self.created.full

    async def part(self, owner: str, response_id: str, *, items: bool) -> dict[str, Any]:
        """Return the conversation up to a response, and its output, as far as they are here, for another worker."""
        part = await self.created.part(owner, response_id, output=True)
        if items and part.n_bytes > MAX_TO_PEERS:  # the limit includes instructions and tools
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

    async def act(self, owner: str, response_id: str, asked: Asked, patience: float) -> dict[str, Any]:
        """Return the answer as JSON; ApiError 404 if the response is not here."""
        match asked:
            case "get":
                background = self.created.find(owner, response_id)
                if background is not None:
                    return {**background.response()}
                kept = await self.created.kept(owner, response_id)
                check_carried(len(kept.response), "this response")
                return as_dict(kept.response)
            case "find":
                if self.created.find(owner, response_id) is None:
                    await self.created.kept(owner, response_id)
                return {}
            case "cancel":
                return await cancelled(self.created, owner, response_id, patience)
            case "delete":
                await self.created.delete(owner, response_id)
                return {**deleted(response_id)}
            case "input" | "history":
                part = await self.created.part(owner, response_id, output=asked == "history")
                if part.missing == response_id:
                    raise not_found(response_id)
                if part.n_bytes > MAX_TO_PEERS:  # the limit includes instructions and tools
                    check_carried(
                        len(await asyncio.to_thread(said, part.items)), "the conversation up to this response"
                    )
                return {"items": part.items, "missing": part.missing, "n_bytes": part.n_bytes}
            case _:
                assert_never(asked)


def created_responses(request: Request) -> CreatedResponses:
    """The responses of this server, for its clients."""
    responses = state_of(request).responses
    assert isinstance(responses, Responses)
    return responses.created


async def cancelled(
    created: CreatedResponses, owner: str, response_id: str, patience: float | None = None
) -> dict[str, Any]:
    """Return the response's state after its cancel; a response that does not end in `patience` seconds is not waited
    for.
    """
    background = created.find(owner, response_id)
    if background is not None:
        background.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await background.ended.wait()
        response = background.response()
        if background.ended.is_set():
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
    """Raise ApiError for data that are too long to be sent to another server."""
    if n_bytes > MAX_TO_PEERS:
        message = (
            f"{what} is on another server, and longer than the {MAX_TO_PEERS:,} bytes that servers send each other"
        )
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


async def elsewhere(request: Request, response_id: str, asked: Asked) -> dict[str, Any] | None:
    """Return the answer of the peer that has this response of the sender's; None if none has, or there are no peers.

    Raises ApiError if that peer refuses, or if a peer that may have the response does not answer.
    """
    unreached: dict[str, str] = request.scope["state"].setdefault("unreached", {})
    state = state_of(request)
    if state.fleet is None or len(response_id) > MAX_NAME:
        return None
    everywhere = fleet_view(Visible(state, owner_of(request.scope), unreached))
    return None if everywhere is None else await everywhere.response(response_id, asked)


async def found_elsewhere(request: Request, error: ApiError, response_id: str, asked: Asked) -> dict[str, Any]:
    """As `elsewhere`, after this server has not found the response; `error` again if no peer has it either."""
    found = await elsewhere(request, response_id, asked) if error.code == "response_not_found" else None
    if found is None:
        raise error
    return found


def asking(request: Request) -> Ask:
    """Return a function that asks the peers for the part of a conversation that ends with a response."""

    async def ask(response_id: str, output: bool) -> Part | None:
        responses = state_of(request).responses
        assert isinstance(responses, Responses)
        if (part := responses.handed(owner_of(request.scope), response_id)) is not None:
            return part
        found = await elsewhere(request, response_id, "history" if output else "input")
        if found is None:
            return None
        items, missing = found.get("items"), found.get("missing")
        if not are_items(items) or not isinstance(missing, str | None) or missing == response_id:
            return None
        # The size is counted here, not taken from the peer.
        return Part(items, missing, len(await asyncio.to_thread(json.dumps, items)))

    return ask
