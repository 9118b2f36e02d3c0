"""Stored responses and conversations, which some worker has; the front does not know which one.

All workers are asked at once, and the one that has it answers. One that does not answer in time is not waited for.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import empty_receive

from pyllmcancel.front.forwarding import kept, process_ended
from pyllmcancel.front.upstream import DEADLINE_SECONDS, Broken, Head, ask
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.from_front import WORKER_PATH, Message, Part
from pyllmcancel.server.http.exchange import exchange_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.responses import Response
    from starlette.types import Scope

    from pyllmcancel.front.forwarding import ClientAnswer, ForwardedRequest
    from pyllmcancel.front.requests import Moved
    from pyllmcancel.front.upstream import WorkerConnection
    from pyllmcancel.front.worker import Worker

T = TypeVar("T")
NOT_FOUND = 404
MAX_PARTS = 32  # parts of a conversation, on one worker and others in turn


async def exchange_with_each(
    message: ForwardedRequest, workers: Sequence[Worker], answer: ClientAnswer, known: Response | None = None
) -> None:
    """Send a request to all workers, and the answer of the one that has what it names to the client.

    If none has it, as far as can be known, the client gets what is `known` here; ApiError if nothing is, and one that
    may have it does not answer.
    """

    async def begun(worker: Worker) -> tuple[WorkerConnection, Head]:
        exchange = await message.begin(worker.address)
        stack.callback(exchange.close)
        return exchange, await exchange.head()

    with ExitStack() as stack:
        answering = await in_time(workers, answer.scope, begun)
        chosen = next((one for one in answering if one[1].status != NOT_FOUND), None)
        if chosen is None and known is not None:
            await known(answer.scope, empty_receive, answer.send)
            return
        if chosen is None and len(answering) == len(workers):
            chosen = answering[0]
        for one in answering:
            if one is not chosen:
                one[0].close()  # now: the chosen answer may be a long stream
        if chosen is None:
            raise unreached()
        exchange, head = chosen
        try:
            await answer.begin(head.status, kept(head.headers))
            async for piece in exchange.pieces():
                await answer.write(piece)
            await answer.end()
        except Broken:
            await answer.break_off(process_ended())


async def in_time(workers: Sequence[Worker], scope: Scope, ask_one: Callable[[Worker], Awaitable[T]]) -> list[T]:
    """Return what the workers answer in time. The others are noted for the client's answer."""

    async def asked(worker: Worker) -> T | None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await ask_one(worker)
        except (OSError, Broken):
            exchange_of(scope).unreached[worker.replica] = "did not answer"
            return None

    return [one for one in await asyncio.gather(*map(asked, workers)) if one is not None]


async def bring(
    workers: Sequence[Worker], moved: Moved, owner: str, response_id: str, to: Worker, *, if_there: bool = False
) -> None:
    """Have a worker know the parts of a conversation that it lacks, up to a response and its output; with `if_there`
    only if the worker has the response itself. ApiError if the conversation cannot go on there, or a worker that may
    have a part does not answer.
    """
    wanted: str | None = response_id
    for _ in range(MAX_PARTS):
        others = [one for one in workers if one is not to and one.name not in moved.get((owner, wanted), ())]
        if wanted is None or not others:
            return
        here = await replied(to, Message(owner=owner, id=wanted))
        if here is None:
            return
        if here.missing != wanted:
            wanted = here.missing
            continue
        if if_there and wanted == response_id:
            return
        question = Message(owner=owner, id=wanted, items=True)
        parts = await asyncio.gather(*(replied(one, question) for one in others))
        part = next((one for one in parts if one is not None and one.missing != wanted), None)
        if part is None and None in parts:
            raise unreached()
        if part is None:
            return  # the worker says so in its own words
        await replied(to, Message(owner=owner, id=wanted, part=part))
        wanted = part.missing


async def replied(worker: Worker, message: Message) -> Part | None:
    """Return the worker's reply to a message; None if it does not answer in time, ApiError if it refuses."""
    content = message.model_dump_json().encode()
    try:
        head, body = await ask(worker.address, WORKER_PATH, content, seconds=DEADLINE_SECONDS)
        if head.status == 200:
            return Part.model_validate_json(body)
        error = json.loads(body)["error"]
        raise ApiError(head.status, error["message"], error["type"], param=error["param"], code=error["code"])
    except (OSError, Broken, ValueError, LookupError, TypeError):
        return None


def unreached() -> ApiError:
    return ApiError(503, "the models' processes do not answer", "server_error", code="replica_unreached")
