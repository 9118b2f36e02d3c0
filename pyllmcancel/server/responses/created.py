"""Responses that are requested after their creation: those generated in the background, and those in the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.responses.background import Background
from pyllmcancel.server.responses.event_log import written
from pyllmcancel.server.responses.output import Cause, End
from pyllmcancel.server.responses.storage.database import (
    DamagedResponseError,
    LongConversationError,
    MissingResponseError,
    ResponseExistsError,
    StoreError,
    StoreFullError,
)
from pyllmcancel.server.responses.storage.items import response_of
from pyllmcancel.server.responses.storage.rows import MAX_CONVERSATION_BYTES, Kept, Part
from pyllmcancel.server.responses.storage.store import Store
from pyllmcancel.shares import Remembered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from pyllmcancel.server.responses.answer import ResponseAnswer

logger = logging.getLogger("pyllmcancel.server")

T = TypeVar("T")
# The kinds of part of a conversation: up to a response, or up to its output.
Ask = Callable[[str, bool], Awaitable[Part | None]]
MAX_PARTS = 32  # parts of a conversation, on this server and others in turn
INLINE_LOG = 512  # entries that are encoded at once; more are encoded in a thread
MAX_UNSTORED = 256  # remembered ends of responses that could not be stored


class CreatedResponses:
    """All responses of a server. Used in the event loop only.

    Parameters
    ----------
    open_store
        Makes the store at its first use; None: nothing is stored.
    store
        The store, if it has been opened already.
    """

    def __init__(self, open_store: Callable[[], Store] | None, store: Store | None = None) -> None:
        self._open_store = open_store
        self._opened = store
        self._live: dict[tuple[str, str], Background] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._unstored = Remembered[str, Background](MAX_UNSTORED)

    @property
    def stores(self) -> bool:
        return self._open_store is not None

    @property
    def full(self) -> bool:
        """True while nothing can be stored, because the store's disk is full."""
        return self._opened is not None and self._opened.full

    @property
    def _store(self) -> Store:
        assert self._open_store is not None
        if self._opened is None:
            self._opened = self._open_store()
        return self._opened

    # -- while they come ----------------------------------------------------------------------------------------------

    def find(self, owner: str, response_id: str) -> Background | None:
        """Return a response that has not ended, or whose end could not be stored."""
        return self._live.get((owner, response_id)) or self._unstored.get(owner, response_id)

    async def begin(self, background: Background, items: Sequence[Any]) -> None:
        """Store the response's beginning, and read its answer to the end.

        Raises
        ------
        ApiError
            The response could not be stored, and is cancelled.
        """
        added = self._store.add(background.owner, background.response() | {"status": "queued"}, items)
        key = background.owner, background.id
        self._live[key] = background
        self._begin_task(self._run(background, added))
        try:
            await done(added)
        except ApiError:
            background.cancel()
            raise

    async def _run(self, background: Background, added: Future[None]) -> None:
        key = background.owner, background.id
        try:
            await background.run(partial(self._finish, added))
        finally:
            del self._live[key]

    async def _finish(self, added: Future[None], background: Background, end: End) -> End:
        """Store the end; if there is no room for it, store that the response has failed."""
        try:
            await done(added)
        except ApiError:
            return end  # `begin` reports it; another response may be stored under this id
        try:
            await self._write_end(background, end)
        except Exception as error:  # any error: whoever waits for the end must get one
            told = api_error(error)
            facts = {"request_id": background.request_id}
            logger.error("response %s: %s", background.id, told.message, exc_info=told is not error, extra=facts)
            cause = Cause(told.code, told.message)
            end = End("failed", end.usage, error={"code": "server_error", "message": told.message}, cause=cause)
            self._unstored.put(background.owner, background.id, background)
        return end

    async def _write_end(self, background: Background, end: End) -> None:
        log = background.log

        def words() -> tuple[ResponseAnswer, str]:
            return log.response(end), written(log.head, log.told, end)

        # The event loop must notice clients that leave meanwhile.
        response, text = words() if len(log.told) <= INLINE_LOG else await asyncio.to_thread(words)
        await done(self._store.finish(background.owner, response, text))

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- in the store -------------------------------------------------------------------------------------------------

    async def keep(self, owner: str, response: ResponseAnswer, items: Sequence[Any]) -> None:
        """Store a response that has ended; ApiError if that is not possible."""
        await done(self._store.add(owner, response, items))

    async def kept(self, owner: str, response_id: str) -> Kept:
        """Return a stored response; ApiError 404 if there is none."""
        found = await done(self._store.get(owner, response_id)) if self.stores else None
        if found is None:
            raise not_found(response_id)
        return found

    async def exists(self, owner: str, response_id: str) -> bool:
        return self.find(owner, response_id) is not None or await done(self._store.exists(owner, response_id))

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response; ApiError if there is none, or it has not ended."""
        if (owner, response_id) in self._live:
            raise ApiError(400, "Cannot delete an in-flight response.", param="response_id")
        unstored = self._unstored.pop(owner, response_id)
        if not (self.stores and await done(self._store.delete(owner, response_id))) and unstored is None:
            raise not_found(response_id)

    async def part(self, owner: str, response_id: str, *, output: bool) -> Part:
        """Return the items up to a response, as far as they are here. The response must have ended if its `output`
        is wanted.
        """
        if output and (owner, response_id) in self._live:
            message = f"Previous response with id '{response_id}' has not ended."
            raise ApiError(400, message, param="previous_response_id", code="previous_response_not_ended")
        if not self.stores:
            return Part([], response_id, 0)
        return await done(self._store.part(owner, response_id, output=output))

    async def input_items(self, owner: str, response_id: str, ask: Ask | None = None) -> list[dict[str, Any]]:
        """Return the items that a response was given, from the first on; ApiError 404 if there is no such response.

        Items that are not here are requested by `ask`.
        """
        return await self._conversation(owner, response_id, ask, output=False)

    async def history(self, owner: str, previous: str, ask: Ask | None = None) -> list[dict[str, Any]]:
        """Return the items before a response that goes on from `previous`, with the output of `previous`.

        Raises ApiError if `previous` cannot be continued.
        """
        try:
            return await self._conversation(owner, previous, ask, output=True)
        except ApiError as error:
            raise previous_not_found(previous) if error.status == 404 else error from error

    async def _conversation(
        self, owner: str, response_id: str, ask: Ask | None, *, output: bool
    ) -> list[dict[str, Any]]:
        """Return all parts, each from the server that has it."""
        parts: list[Part] = []
        missing: str | None = response_id
        while missing is not None:
            # Every response before the last one contributes its output.
            with_output = output or bool(parts)
            part: Part | None = await self.part(owner, missing, output=with_output)
            if part is not None and part.missing == missing:
                part = None if ask is None or len(parts) >= MAX_PARTS else await ask(missing, with_output)
            if part is None:
                raise not_found(missing)
            parts.append(part)
            if sum(one.n_bytes for one in parts) > MAX_CONVERSATION_BYTES:
                raise too_long(f"the conversation has more than {MAX_CONVERSATION_BYTES:,} bytes")
            missing = part.missing
        return [item for part in reversed(parts) for item in part.items]

    async def items(self, owner: str, ids: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        """Return stored items by their ids; ApiError 404 for the first missing one."""
        responses = dict.fromkeys(filter(None, map(response_of, ids)))
        stored = await done(self._store.items(owner, responses)) if self.stores and responses else []
        found = {item["id"]: item for item in stored}
        for item_id in ids:
            if item_id not in found:
                message = f"Item with id '{item_id}' not found. Items are kept of responses that are stored."
                raise ApiError(404, message, param="input", code="item_not_found")
        return found

    async def close(self) -> None:
        """Cancel responses in the background, wait until their ends are stored, and close the store."""
        for background in self._live.values():
            background.cancel(CancelReason.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._opened is not None:
            await asyncio.to_thread(self._opened.close)


async def done(future: Future[T]) -> T:
    """Wait for the store, and return its result. Its errors are raised as clients get them."""
    try:
        return await asyncio.wrap_future(future)
    except MissingResponseError as error:
        raise not_found(error.response_id) from error
    except LongConversationError as error:
        raise too_long(str(error)) from error
    except ResponseExistsError as error:
        raise id_taken() from error
    except DamagedResponseError as error:
        raise damaged(error.response_id) from None
    except StoreFullError as error:
        raise ApiError(507, str(error), "server_error", code="storage_full") from error
    except StoreError as error:
        raise ApiError(500, str(error), "server_error", code="storage_failed") from error


def too_long(why: str) -> ApiError:
    return ApiError(400, why, param="previous_response_id", code="invalid_request")


def not_found(response_id: str) -> ApiError:
    return ApiError(404, f"Response with id '{response_id[:300]}' not found.", code="response_not_found")


def damaged(name: str) -> ApiError:
    message = f"What is stored as '{name[:300]}' is damaged, and can be deleted."
    return ApiError(500, message, "server_error", code="response_damaged")


def previous_not_found(response_id: str) -> ApiError:
    message = f"Previous response with id '{response_id[:300]}' not found."
    return ApiError(404, message, param="previous_response_id", code="previous_response_not_found")


def id_taken() -> ApiError:
    message = "a response of this id is stored: send another X-Request-Id, or none"
    return ApiError(400, message, param="X-Request-Id", code="bad_id")
