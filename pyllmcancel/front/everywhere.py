"""Streams, stored responses and conversations, which some worker has; the front does not know which one.

All workers are asked at once, and the one that has it answers. One that does not answer in time is not waited for.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from pyllmcancel.front.forwarding import kept, pass_through
from pyllmcancel.front.front import DEADLINE_SECONDS
from pyllmcancel.front.upstream import Broken, Exchange, Head
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.from_front import AskPart, Done, HavePart, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.types import Scope

    from pyllmcancel.front.forwarding import Answer, Leaving, Message
    from pyllmcancel.front.front import Front
    from pyllmcancel.front.worker import Worker

NOT_FOUND = 404
MAX_PARTS = 32  # parts of a conversation, on one worker and others in turn


async def exchange_with_each(message: Message, workers: Sequence[Worker], leaving: Leaving, answer: Answer) -> None:
    """Send a request to all workers, and the answer of the one that has what it names to the client.

    Raises
    ------
    ApiError
        None has it, as far as can be known, and one that may have it does not answer; or that one breaks off.
    ClientLeft
    """
    begun = await asyncio.gather(*(begun_by(one, message) for one in workers))
    note_unreached(answer.scope, [worker for worker, one in zip(workers, begun, strict=True) if one is None])
    answering = [one for one in begun if one is not None]
    chosen = next((one for one in answering if one[1].status != NOT_FOUND), None)
    if chosen is None and len(answering) == len(workers):
        chosen = answering[0]
    for one in answering:
        if one is not chosen:
            one[0].close()
    if chosen is None:
        raise unreached()
    with leaving.closes(chosen[0]) as exchange:
        await pass_through(exchange, chosen[1], leaving, answer)


async def begun_by(worker: Worker, message: Message) -> tuple[Exchange, Head] | None:
    """Return a worker's answer, of which the head has come; None if it does not come in time."""
    exchange = None
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            exchange = await Exchange.begin(
                worker.address, message.method, message.target, message.headers, message.body
            )
            return exchange, await exchange.head()
    except (OSError, Broken, ValueError):
        if exchange is not None:
            exchange.close()
        return None


async def list_of_each(message: Message, owner: str, workers: Sequence[Worker], answer: Answer) -> None:
    """Send a request for streams to all workers, and their lists to the client as one; an error of one as it is."""
    told: list[Any] = []
    for worker, begun in zip(workers, await asyncio.gather(*(begun_by(one, message) for one in workers)), strict=True):
        if begun is None:
            note_unreached(answer.scope, [worker])
            continue
        exchange, head = begun
        try:
            content = await exchange.whole()
        finally:
            exchange.close()
        if head.status != 200:
            await answer.begin(head.status, kept(head.headers))
            await answer.write(content)
            return await answer.end()
        told += [one for one in json.loads(content) if (owner, one["request_id"]) not in worker.given_away]
    content = json.dumps(told).encode()
    await answer.begin(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))])
    await answer.write(content)
    return await answer.end()


async def bring(front: Front, owner: str, response_id: str, to: Worker, *, if_there: bool = False) -> None:
    """Have a worker know the parts of a conversation that it lacks, up to a response and its output.

    Parameters
    ----------
    if_there
        Do so only if the worker has the response itself.

    Raises
    ------
    ApiError
        The conversation cannot go on there, or a worker that may have a part does not answer.
    """
    wanted: str | None = response_id
    for _ in range(MAX_PARTS):
        others = [one for one in front.ready() if one is not to and (owner, wanted) not in one.given_away]
        here = await front.ask_or_raise(to, asked(owner, wanted), Part) if wanted is not None and others else None
        if here is None or wanted is None:
            return
        if here.missing != wanted:
            wanted = here.missing
            continue
        if if_there and wanted == response_id:
            return
        told = await asyncio.gather(
            *(front.ask_or_raise(one, asked(owner, wanted, items=True), Part) for one in others)
        )
        part = next((one for one in told if one is not None and one.missing != wanted), None)
        if part is None and None in told:
            raise unreached()
        if part is None:
            return  # the worker says so in its own words
        message = HavePart(owner=owner, id=wanted, items=part.items, missing=part.missing)
        await front.ask_or_raise(to, message, Done)
        wanted = part.missing


def asked(owner: str, response_id: str, *, items: bool = False) -> AskPart:
    return AskPart(owner=owner, id=response_id, items=items)


def note_unreached(scope: Scope, workers: Iterable[Worker]) -> None:
    """Note for the answer the workers that did not answer in time."""
    told: dict[str, str] = scope["state"].setdefault("unreached", {})
    told.update({one.replica: "did not answer" for one in workers})


def unreached() -> ApiError:
    return ApiError(503, "the models' processes do not answer", "server_error", code="replica_unreached")
