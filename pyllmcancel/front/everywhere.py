"""Stored responses and conversations, which some worker has; the front does not know which one.

All workers are asked at once, and the one that has it answers. One that does not answer in time is not waited for.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from pyllmcancel.front.forwarding import kept, process_ended
from pyllmcancel.front.upstream import DEADLINE_SECONDS, Broken, Head, ask, whole_of
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.from_front import WORKER_PATH, Message, Part
from pyllmcancel.server.http.exchange import exchange_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from starlette.types import Scope

    from pyllmcancel.front.forwarding import ClientAnswer, ForwardedRequest
    from pyllmcancel.front.requests import Moved
    from pyllmcancel.front.upstream import WorkerConnection
    from pyllmcancel.front.worker import Worker

T = TypeVar("T")
NOT_FOUND = 404
MAX_PARTS = 32  # parts of a conversation, on one worker and others in turn


async def exchange_with_each(message: ForwardedRequest, workers: Sequence[Worker], answer: ClientAnswer) -> None:
    """Send a request to all workers, and the answer of the one that has what it names to the client.

    ApiError if none has it, as far as can be known, and one that may have it does not answer.
    """
    with ExitStack() as stack:
        begun = await asyncio.gather(*(in_time(begun_by(one, message, stack)) for one in workers))
        note_unreached(answer.scope, [worker for worker, one in zip(workers, begun, strict=True) if one is None])
        answering = [one for one in begun if one is not None]
        chosen = next((one for one in answering if one[1].status != NOT_FOUND), None)
        if chosen is None and len(answering) == len(workers):
            chosen = answering[0]
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


async def in_time(work: Awaitable[T]) -> T | None:
    """Return what a worker answers; None if it does not do so in time."""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await work
    except (OSError, Broken):
        return None


async def begun_by(worker: Worker, message: ForwardedRequest, stack: ExitStack) -> tuple[WorkerConnection, Head]:
    """Return a worker's answer, of which the head has come, and which is closed with `stack`."""
    exchange = await message.begin(worker.address)
    stack.callback(exchange.close)
    return exchange, await exchange.head()


async def answers_of(
    workers: Sequence[Worker], message: ForwardedRequest, scope: Scope
) -> list[tuple[Worker, Head, bytes]]:
    """Return the whole answers of the workers that answer in time; the others are noted for the client's answer."""

    async def answer_of(worker: Worker) -> tuple[Worker, Head, bytes]:
        return worker, *await whole_of(await message.begin(worker.address))

    answers = await asyncio.gather(*(in_time(answer_of(one)) for one in workers))
    note_unreached(scope, [one for one, answer in zip(workers, answers, strict=True) if answer is None])
    return [answer for answer in answers if answer is not None]


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
        head, body = await ask(
            worker.address, WORKER_PATH.encode(), body=content, method="POST", seconds=DEADLINE_SECONDS
        )
        if head.status == 200:
            return Part.model_validate_json(body)
        error = json.loads(body)["error"]
        raise ApiError(head.status, error["message"], error["type"], param=error["param"], code=error["code"])
    except (OSError, Broken, ValueError, LookupError, TypeError):
        return None


def note_unreached(scope: Scope, workers: Iterable[Worker]) -> None:
    """Note for the answer the workers that did not answer in time."""
    exchange_of(scope).unreached.update({one.replica: "did not answer" for one in workers})


def unreached() -> ApiError:
    return ApiError(503, "the models' processes do not answer", "server_error", code="replica_unreached")
