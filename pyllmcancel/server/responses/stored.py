"""Responses that are requested after their creation: those generated in the background, and those in the store."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from fastapi import Request
from pydantic import TypeAdapter, ValidationError

from pyllmcancel.events import RequestStatus
from pyllmcancel.requests.token_stream import AsyncStream
from pyllmcancel.server.answer_events import AnswerEvents, frame
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.errors.shapes import ErrorFacts
from pyllmcancel.server.limits import MAX_TO_WORKERS
from pyllmcancel.server.responses.answer import ResponseAnswer, ResponseEvent, ResponseHead
from pyllmcancel.server.responses.dialect import ResponsesDialect
from pyllmcancel.server.responses.input_items import AnyItem, Item, response_of
from pyllmcancel.server.responses.output import End, Output
from pyllmcancel.server.responses.storage.database import StoreError, damaged, not_found, too_long
from pyllmcancel.server.responses.storage.rows import MAX_CONVERSATION_BYTES, Part, Stored, are_items, checked, said
from pyllmcancel.server.responses.storage.store import Store
from pyllmcancel.server.responses.tools import ToolTable
from pyllmcancel.server.streams.kept import Keeping, KeptAnswer
from pyllmcancel.server.streams.kept_answers import KeptAnswers
from pyllmcancel.server.streams.reading import without_first
from pyllmcancel.shares import Owners, Remembered

logger = logging.getLogger("pyllmcancel.server")

ITEMS: TypeAdapter[list[AnyItem]] = TypeAdapter(list[Item])
Items = Sequence[Any]
Events = Sequence[ResponseEvent]
MAX_PARTS = 32  # parts of a conversation, on this server and others in turn
MAX_HANDED = 64  # parts of conversations, each of `MAX_TO_WORKERS` at most
MAX_UNSTORED = 256  # remembered ends of responses that could not be stored


class BackgroundResponse(KeptAnswer):
    """A response that is generated although nobody waits for it. Its events go into the store with its end."""

    def __init__(self, stream: AsyncStream, dialect: ResponsesDialect) -> None:
        keeping = Keeping(dialect.output.response_id, is_stored=True)
        super().__init__(keeping, stream, AnswerEvents(stream, dialect, 0.0))
        self._dialect = dialect

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            self._dialect.store = None  # it refers to this response, whose memory would wait for a collection

    def response(self) -> ResponseAnswer:
        """Return the response's present state."""
        if self.log.ended:
            return self._dialect.response
        waits = self.request.status is RequestStatus.WAITING
        return self._dialect.output.response("queued" if waits else "in_progress")


class Responses:
    """All responses of a server, and parts of conversations that other workers have. Used in the event loop only.

    `open_store` makes the store at its first use, unless a `store` was opened before; without it nothing is stored.
    """

    def __init__(self, open_store: Callable[[], Store] | None, store: Store | None = None) -> None:
        self._open_store = open_store
        self._opened = store
        self._live = KeptAnswers[BackgroundResponse](sys.maxsize, Owners(several=False))
        self._unstored = Remembered[str, BackgroundResponse](MAX_UNSTORED)
        self._handed = Remembered[str, Part](MAX_HANDED)

    @property
    def stores(self) -> bool:
        return self._open_store is not None

    @property
    def full(self) -> bool:
        """True while nothing can be stored, because the store's disk is full."""
        return self._opened is not None and self._opened.full

    @property
    def store(self) -> Store:
        """The store, which is opened now if it was not before."""
        assert self._open_store is not None
        if self._opened is None:
            self._opened = self._open_store()
        return self._opened

    # -- in the background --------------------------------------------------------------------------------------------

    def find(self, owner: str, response_id: str) -> BackgroundResponse | None:
        """Return a response that has not ended, or whose end could not be stored."""
        return self._live.named(owner, response_id) or self._unstored.get(owner, response_id)

    async def begin(
        self, stream: AsyncStream, dialect: ResponsesDialect, items: Sequence[Any], *, replaces: bool
    ) -> BackgroundResponse:
        """Store a response's beginning, and have its answer written to the end. It takes the place of a response of its
        id if it `replaces` one. StoreError if it could not be stored; then it is cancelled.
        """
        background = BackgroundResponse(stream, dialect)
        response = background.response() | {"status": "queued"}
        added = self._add(background.owner, response, items, replaces=replaces)
        dialect.store = partial(self._finish, added, background)
        self._live.begin(background)
        try:
            await asyncio.wrap_future(added)
        except StoreError:
            background.cancel()
            raise
        return background

    async def _finish(
        self, added: Future[None], kept: BackgroundResponse, response: ResponseAnswer, last: Events
    ) -> None:
        """Store a response's end, and its events, of which the last ones are yet to be written."""
        try:
            await asyncio.wrap_future(added)
        except StoreError:
            return  # `begin` reports it; another response may be stored under this id
        try:
            log = await asyncio.to_thread(packed, kept.log.content, last)
            await asyncio.wrap_future(self.store.finish(kept.owner, response, log))
        except Exception as error:  # any error: whoever waits for the end must get one
            shown = api_error(error)
            facts = {"request_id": kept.request.id}
            logger.error("response %s: %s", kept.name, shown.message, exc_info=shown is not error, extra=facts)
            self._unstored.put(kept.owner, kept.name, kept)
            raise shown from error

    async def close(self) -> None:
        """Cancel responses in the background, wait until their ends are stored, and close the store."""
        await self._live.close()
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)

    # -- in the store -------------------------------------------------------------------------------------------------

    async def keep(self, owner: str, items: Items, response: ResponseAnswer, _last: Events, *, replaces: bool) -> None:
        """Store a response that has ended; ApiError if that is not possible. `replaces` is as in `begin`."""
        try:
            await asyncio.wrap_future(self._add(owner, response, items, replaces=replaces))
        except StoreError as error:
            raise api_error(error) from error

    def _add(self, owner: str, response: ResponseAnswer, items: Sequence[Any], *, replaces: bool) -> Future[None]:
        if replaces:
            self._unstored.pop(owner, response["id"])
        return self.store.add(owner, response, items, replaces=replaces)

    async def stored(self, owner: str, response_id: str) -> Stored:
        """Return a stored response; StoreError 404 if there is none."""
        found = await asyncio.wrap_future(self.store.get(owner, response_id)) if self.stores else None
        if found is None:
            raise not_found(response_id)
        return found

    async def exists(self, owner: str, response_id: str) -> bool:
        live = self.find(owner, response_id) is not None
        return live or await asyncio.wrap_future(self.store.exists(owner, response_id))

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response; StoreError if there is none, ApiError if it has not ended."""
        if self._live.named(owner, response_id) is not None:
            raise ApiError(400, "Cannot delete an in-flight response.", param="response_id")
        unstored = self._unstored.pop(owner, response_id)
        if not (self.stores and await asyncio.wrap_future(self.store.delete(owner, response_id))) and unstored is None:
            raise not_found(response_id)

    async def items(self, owner: str, ids: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        """Return stored items by their ids; ApiError 404 for the first missing one."""
        responses = dict.fromkeys(filter(None, map(response_of, ids)))
        stored = await asyncio.wrap_future(self.store.items(owner, responses)) if self.stores and responses else []
        found = {item["id"]: item for item in stored}
        for item_id in ids:
            if item_id not in found:
                message = f"Item with id '{item_id}' not found. Items are kept of responses that are stored."
                raise ApiError(404, message, param="input", code="item_not_found")
        return found

    # -- conversations ------------------------------------------------------------------------------------------------

    async def history(self, owner: str, previous: str) -> list[dict[str, Any]]:
        """Return the items before a response that goes on from `previous`; ApiError if it cannot be continued."""
        try:
            return await self.conversation(owner, previous, output=True)
        except StoreError as error:
            if error.status != 404:
                raise
            message = f"Previous response with id '{previous[:300]}' not found."
            param, code = "previous_response_id", "previous_response_not_found"
            raise ApiError(404, message, param=param, code=code) from error

    async def conversation(self, owner: str, response_id: str, *, output: bool) -> list[dict[str, Any]]:
        """Return the items of a conversation, from the first to the input of a response, or to its `output`.

        A part that is not here has been brought from another worker before. StoreError 404 if a response is nowhere.
        """
        parts: list[Part] = []
        missing: str | None = response_id
        while missing is not None:
            # Every response before the last one contributes its output.
            part: Part | None = await self._part(owner, missing, output=output or bool(parts))
            if part is not None and part.missing == missing:
                part = self._handed.pop(owner, missing) if len(parts) < MAX_PARTS else None
            if part is None:
                raise not_found(missing)
            parts.append(part)
            if sum(one.n_bytes for one in parts) > MAX_CONVERSATION_BYTES:
                raise too_long(f"the conversation has more than {MAX_CONVERSATION_BYTES:,} bytes")
            missing = part.missing
        return [item for part in reversed(parts) for item in part.items]

    async def _part(self, owner: str, response_id: str, *, output: bool) -> Part:
        """Return the items up to a response, as far as they are here; for the `output` it must have ended."""
        if output and self._live.named(owner, response_id) is not None:
            message = f"Previous response with id '{response_id}' has not ended."
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_ended")
        if not self.stores:
            return Part([], response_id, 0)
        return await asyncio.wrap_future(self.store.part(owner, response_id, output=output))

    async def part(self, owner: str, response_id: str, *, items: bool) -> dict[str, Any]:
        """Return the conversation up to a response, and its output, as far as they are here, for another worker."""
        part = await self._part(owner, response_id, output=True)
        is_long = items and part.n_bytes > MAX_TO_WORKERS  # these bytes include instructions and tools
        if is_long and len(await asyncio.to_thread(said, part.items)) > MAX_TO_WORKERS:
            message = "the conversation up to this response is on another worker, and longer than the"
            raise ApiError(400, f"{message} {MAX_TO_WORKERS:,} bytes that one sends another", code="elsewhere")
        return {"items": part.items if items else [], "missing": part.missing}

    def have(self, owner: str, response_id: str, items: list[dict[str, Any]], missing: str | None) -> None:
        """Keep a part of a conversation for the next request that goes on from it."""
        if not are_items(items) or missing == response_id:
            raise ApiError(400, "this is no part of a conversation", param="items", code="invalid_request")
        self._handed.put(owner, response_id, Part(items, missing, len(said(items))))


def responses_of(request: Request) -> Responses:
    """Return the responses of this server."""
    responses: Responses = request.app.state.responses
    return responses


def read_items(items: Sequence[Mapping[str, Any]], name: str) -> list[AnyItem]:
    """Return items that were stored under this name; StoreError if they are invalid."""
    try:
        return ITEMS.validate_python(items)
    except ValidationError:  # its text contains pieces of the items
        raise damaged(name) from None


def packed(events: bytes, last: Sequence[ResponseEvent]) -> bytes:
    """Return the events of a response in the form in which they are stored."""
    return zlib.compress(events + b"".join(frame(event, named=True) for event in last))


def events_from(stored: Stored, response_id: str, first: int) -> bytes:
    """Return the events of a stored response from a number on; StoreError if they are damaged."""
    log = stored.log
    with checked(response_id):
        events = events_of_lost(json.loads(stored.response)) if log is None else zlib.decompress(log)
    return without_first(events, first)[0]


def events_of_lost(response: dict[str, Any]) -> bytes:
    """Return the events of a response that ended with its server, which has stored none."""
    head: Any = {name: response[name] for name in ResponseHead.__annotations__}
    error = response["error"]
    end = End(response["status"], None, error=error, cause=ErrorFacts(500, error["message"], code=error["code"]))
    output = Output(head, ToolTable(), encrypts=False)
    events = (*output.begin(queued=True), *output.end_items(end), *output.end(end))
    return b"".join(frame(event, named=True) for event in events)
