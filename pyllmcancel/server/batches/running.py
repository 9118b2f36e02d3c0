"""Batches that have not ended: their lines are requests of their owners, in sessions that are named after them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.types import Message

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import Request
from pyllmcancel.server.batches.lines import Answered, Line, Result, read_lines
from pyllmcancel.server.batches.storage import BatchStore
from pyllmcancel.server.batches.wire import BATCH, BatchAnswer, BatchBody, Told
from pyllmcancel.server.bodies import receive_nothing
from pyllmcancel.server.errors.responses import ApiError, api_error
from pyllmcancel.server.http.body_limit import replayed
from pyllmcancel.server.http.exchange import exchange_of
from pyllmcancel.server.origin import PRIORITY
from pyllmcancel.server.responses.storage.database import StoreError
from pyllmcancel.server.responses.storage.store import Store

logger = logging.getLogger("pyllmcancel.server")

AGAIN_SECONDS = 10.0  # until an end that could not be stored is tried again
MAX_RUNNING = 16  # an owner's batches that have not ended
EXPIRED = "batch_expired", "This request could not be executed before the completion window expired."


@dataclass(slots=True, eq=False)
class RunningBatch:
    """A batch, as its owner is shown it, until its end. Used in the event loop only."""

    app: FastAPI
    n_slots: Callable[[], int]  # requests that the server computes at once; one more is sent, which is the next
    store: BatchStore
    owner: str
    told: Told
    query: bytes
    _left: dict[int, Line] = field(default_factory=dict)  # the lines without a result
    _end: str = "completed"
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Compute what is left of the batch, and store its end."""
        if self.told["status"] == "cancelling":
            self.stop("cancelled")
        left = max(0.0, self.told["expires_at"] - time.time())
        timer = asyncio.get_running_loop().call_later(left, self.stop, "expired", CancelReason.DEADLINE)
        try:
            await self._compute()
        finally:
            timer.cancel()
        self._stopped.set()  # from here on it can neither be cancelled nor expire
        self._set("finalizing")
        while not await self._has_finished():  # noqa: ASYNC110 - a full disk has no event
            await asyncio.sleep(AGAIN_SECONDS)

    async def _has_finished(self) -> bool:
        """Store the batch's end; False if there was no room for it."""
        try:
            if self._end == "expired":
                await self._refuse([(line, EXPIRED) for line in self._left.values()])
            self._set(self._end)
            await asyncio.wrap_future(self.store.finish(self.owner, self.told))
        except StoreError as error:
            logger.error("the end of %s is not stored: %s", self.told["id"], error)
            return False
        return True

    async def cancel(self) -> None:
        """Have the batch end soon, and wait until nothing is computed for it."""
        if not self._stopped.is_set():
            self._set("cancelling")
            stopping = self.stop("cancelled")
            await asyncio.wrap_future(self.store.save(self.owner, self.told))
            for request in stopping:
                await asyncio.shield(asyncio.wrap_future(request.ended))

    def stop(self, end: str, reason: CancelReason = CancelReason.EXPLICIT) -> list[Request]:
        """Send no more lines, and cancel the requests of those that were sent; return these."""
        if self._stopped.is_set():
            return []
        self._end = end
        self._stopped.set()
        requests: list[Request] = []
        with suppress(ApiError):  # the model is not loaded
            engine = self.app.state.server.engine
            requests += (engine.registry.family_to_cancel(self.told["id"], self.owner) or {}).get(self.told["id"], [])
        for request in requests:
            engine.cancel(request, reason)
        return requests

    def _set(self, status: str) -> None:
        self.told |= {"status": status, f"{status}_at": int(time.time())}

    async def _compute(self) -> None:
        """Compute the lines that have no result, until they have, or the batch is stopped."""
        try:
            if self._end != "cancelled":
                await self._read()
                await self._send()
        except Exception as error:
            shown = api_error(error)
            logger.warning("%s failed: %s", self.told["id"], shown.message, exc_info=shown is not error)
            self.stop("failed")
            self._end = "failed"
            found = {"code": shown.code, "message": shown.message, "param": None, "line": None}
            self.told["errors"] = {"object": "list", "data": [found]}

    async def _read(self) -> None:
        """Read the file, and find the lines that have no result."""
        content = b"".join([piece async for piece in self.store.content(self.owner, self.told["input_file_id"])])
        state = self.app.state.server
        most = state.config.limits.values(state.n_ctx)
        lines = await asyncio.to_thread(read_lines, content, self.told["endpoint"], most)
        had = await asyncio.wrap_future(self.store.results(self.owner, self.told["id"]))
        self._left = {line.number: line for line in lines if line.number not in had}
        n_failed = sum(had.values())
        self.told["request_counts"] = {"total": len(lines), "completed": len(had) - n_failed, "failed": n_failed}
        if self.told["status"] == "validating":
            self._set("in_progress")
        await self._refuse([(line, line.error) for line in self._left.values() if line.error is not None])

    async def _send(self) -> None:
        """Send some lines at once until none is left."""
        waiting, sent = deque(self._left.values()), set[asyncio.Task[None]]()
        try:
            while sent or (waiting and not self._stopped.is_set()):
                while waiting and len(sent) <= self.n_slots() and not self._stopped.is_set():
                    sent.add(asyncio.create_task(self._send_one(waiting.popleft(), waiting)))
                ended, sent = await asyncio.wait(sent, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
        finally:
            for task in sent:
                task.cancel()
            await asyncio.gather(*sent, return_exceptions=True)

    async def _send_one(self, line: Line, waiting: deque[Line]) -> None:
        """Have a line computed. One for which the server has no room, or no model yet, comes after those that wait."""
        answer = await self._ask(line.body)
        if (seconds := answer.retry_after) is None:
            if not self._stopped.is_set() or answer.status < 400:
                await self._record([line.answered(answer)])
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        waiting.append(line)

    async def _ask(self, body: bytes) -> Answered:
        """Ask the application that clients ask, without a connection; the owner's key counts as checked."""
        answered = Answered()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
                answered.headers = {name.lower(): value for name, value in message["headers"]}
            answered.body += message.get("body", b"")

        path = self.told["endpoint"]
        names = {b"host": b"", b"content-type": b"application/json", b"x-session-id": self.told["id"].encode()}
        names[PRIORITY.lower().encode()] = b"idle"
        scope: Any = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"}
        scope |= {
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": self.query,
        }
        scope |= {"headers": [*names.items()], "client": None, "server": None}
        exchange = exchange_of(scope)
        exchange.owner, exchange.is_from_front, exchange.spreads = self.owner, True, True
        try:
            await self.app(scope, replayed(body, receive_nothing), send)
        except Exception:  # a defect, which the application has logged and answered
            if not answered.body:
                raise
        return answered

    async def _record(self, results: list[Result]) -> None:
        for _, failed, _ in results:
            self.told["request_counts"]["failed" if failed else "completed"] += 1
        # If it fails, `BatchStore.finish` counts anew.
        await asyncio.wrap_future(self.store.save(self.owner, self.told, results))
        for number, _, _ in results:
            del self._left[number]

    async def _refuse(self, lines: list[tuple[Line, tuple[str, str]]]) -> None:
        """Record lines that are not computed: they may be many, so their results are worded in a thread."""
        await self._record(await asyncio.to_thread(lambda: [line.refused(*error) for line, error in lines]))


@dataclass(slots=True, eq=False)
class Batches:
    """All batches of a server, whose lines go to `app`. Used in the event loop only."""

    app: FastAPI
    n_slots: Callable[[], int]
    open_store: Callable[[], Store] | None  # None: nothing is stored, and there are no batches
    query: bytes = b""  # of each line's request
    _running: dict[tuple[str, str], RunningBatch] = field(default_factory=dict)  # by owner and id
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def store(self) -> BatchStore:
        """The store of files and batches; ApiError if nothing is stored."""
        if self.open_store is None:
            raise ApiError(400, "without a store (--store off) there are no files or batches", code="unsupported_field")
        return BatchStore(self.open_store())

    async def go_on(self) -> None:
        """Begin with the batches that had not ended when the last server did."""
        try:
            for owner, told in await self.store.told((BATCH,), "busy > 0 ORDER BY number"):
                self._run(owner, told)
        except StoreError as error:
            logger.error("the unfinished batches cannot be read: %s", error)

    async def create(self, owner: str, body: BatchBody) -> Told:
        """Store a batch and begin it; ApiError if there is no such file."""
        if sum(one == owner for one, _ in self._running) >= MAX_RUNNING:
            raise ApiError(429, f"{MAX_RUNNING} batches have not ended", "rate_limit_error", code="too_many_batches")
        now = int(time.time())
        told: Told = dict.fromkeys(BatchAnswer.__annotations__)
        told |= {"id": f"batch_{secrets.token_hex(12)}", "object": "batch", "status": "validating"}
        told |= {name: getattr(body, name) for name in BatchBody.model_fields}
        told |= {"created_at": now, "expires_at": now + body.seconds}
        told["request_counts"] = {"total": 0, "completed": 0, "failed": 0}
        if not await asyncio.wrap_future(self.store.begin(owner, told)):
            raise ApiError(404, "there is no file of this id", param="input_file_id", code="not_found")
        self._run(owner, told)
        return told.copy()

    def _run(self, owner: str, told: Told) -> None:
        key = owner, told["id"]
        self._running[key] = batch = RunningBatch(self.app, self.n_slots, self.store, owner, told, self.query)
        self.begin(batch.run()).add_done_callback(lambda _: self._running.pop(key))

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have some work done until `close`."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self, owner: str, name: str) -> Told:
        """Cancel a batch, and return it; ApiError if it has ended otherwise, or there is none."""
        if (batch := self._running.get((owner, name))) is not None:
            await batch.cancel()
        found: Told = await self.store.get(owner, name, BATCH)
        if (status := found["status"]) not in ("cancelling", "cancelled"):
            raise ApiError(409, f"Cannot cancel a batch with status '{status}'.", code="batch_has_ended")
        return found

    async def close(self) -> None:
        """Stop, without an end: the next server on the store goes on. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
