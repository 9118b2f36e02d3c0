"""Cancels by id, of requests that wait here, are on their way to their model's process, or are known to it.

The process of a request that is on its way need not know it yet. It then cancels the request when it accepts it: the
request has arrived in front before the cancel, and a later request of the same id has not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.router.routed import mark_of
from pyllmcancel.server.fleet.merging import merged_cancels
from pyllmcancel.server.fleet.messages import Cancel, Cancelled, ListRequests, Owned, Requests, WhoseRequest
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS
from pyllmcancel.server.limits import MAX_CANCELS
from pyllmcancel.server.requests.visible import only, without_prefix

if TYPE_CHECKING:
    from pyllmcancel.router.front import Front
    from pyllmcancel.router.process import ModelProcess
    from pyllmcancel.router.routed import Mark, RoutedRequest, RoutedRequests
    from pyllmcancel.server.fleet.messages import Message, Reply

R = TypeVar("R", bound="Reply")
Answers = dict[str, dict[str, Any]]  # by id


class Cancels:
    """Cancels requests, and tells how they ended. Used in the event loop only."""

    def __init__(self, requests: RoutedRequests, front: Front) -> None:
        self._requests = requests
        self._front = front
        # Questions whose answers nobody awaits any more; a process that is stuck gets its cancel all the same.
        self._left = set[asyncio.Task[Any]]()

    def _of(self, owner: str | None, request_id: str) -> list[RoutedRequest]:
        names = {request_id, *without_prefix(request_id)}
        return [one for one in self._requests.of(owner) if one.id in names]

    async def owners_of(self, ids: Collection[str], processes: Collection[ModelProcess], hold: float) -> dict[str, str]:
        """Return the owner of each, for an administrator who names none. ApiError if several owners have one."""
        message = WhoseRequest(ids=list(ids))
        replies = await asyncio.gather(*(self._in_time(one, message, Owned) for one in processes))
        owners = {one: {routed.owner for routed in self._of(None, one)} for one in ids}
        for reply in filter(None, replies):
            for one, some in reply.owners.items():
                owners.setdefault(one, set()).update(some)
        return {one: only(owners[one], hold) for one in ids}

    async def _in_time(self, process: ModelProcess, message: Message, reply: type[R]) -> R | None:
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await self._front.ask(process, message, reply)
        except TimeoutError:
            return None

    async def strangers(self, requests: Iterable[RoutedRequest]) -> list[RoutedRequest]:
        """Return those of the requests that wait, or are not known to the process to which they were sent."""
        found = [one for one in requests if not one.is_known]
        sent: dict[tuple[ModelProcess, str], list[str]] = {}
        for one in found:
            if one.process is not None:
                sent.setdefault((one.process, one.owner), []).append(one.id)
        known = await asyncio.gather(*(self._known(process, owner, ids) for (process, owner), ids in sent.items()))
        return [one for one in found if not any(one.mark in some for some in known)]

    async def _known(self, process: ModelProcess, owner: str, ids: list[str]) -> set[Mark]:
        parts = [ids[begin : begin + MAX_CANCELS] for begin in range(0, len(ids), MAX_CANCELS)]
        messages = [ListRequests(owner=owner, ids=part) for part in parts]
        replies = await asyncio.gather(*(self._in_time(process, message, Requests) for message in messages))
        return {mark_of(entry) for reply in replies if reply is not None for entry in reply.data}

    async def cancel(
        self, ids: Collection[str], owner: str, processes: Collection[ModelProcess], *, wait: bool
    ) -> Answers:
        """Cancel an owner's requests of these ids; return the answers about those that are known."""
        found = await self._routed(ids, owner, wait=wait)
        if rest := [one for one in ids if one not in found]:
            found |= await self._everywhere(rest, owner, processes, wait=wait)
        if rest := [one for one in ids if one not in found]:
            found |= await self._routed(rest, owner, wait=wait)  # those that came meanwhile
        return found

    async def _routed(self, ids: Collection[str], owner: str, *, wait: bool) -> Answers:
        found = await asyncio.gather(*(self.cancel_all(self._of(owner, one), wait=wait) for one in ids))
        return {one: next(iter(some.values())) for one, some in zip(ids, found, strict=True) if some}

    async def cancel_all(self, requests: Collection[RoutedRequest], *, wait: bool) -> Answers:
        """Cancel requests that wait here, or were sent to a process."""
        found = {one.id: one.cancelled() for one in requests if one.cancel()}
        sent = [one for one in requests if not one.waits]
        for one, answer in zip(sent, await asyncio.gather(*(self._sent(one, wait=wait) for one in sent)), strict=True):
            if answer is not None:
                found.setdefault(one.id, answer)
        return found

    async def _sent(self, one: RoutedRequest, *, wait: bool) -> dict[str, Any] | None:
        """Have its process cancel a request; return the answer, or None if there is none."""
        process = one.process
        assert process is not None
        one.cancel()  # for the case that the process ends before it gets the request
        message = Cancel(owner=one.owner, ids=[one.id], wait=wait, on_their_way=True)
        for is_first in (True, False):
            was_known = not one.is_between or one.process is not process
            reply = await self._front.ask(process, message, Cancelled)
            if reply is None:
                break
            # One that has ended may be an older one, while this one is not known yet.
            told = reply.live.get(one.id) or (reply.ended.get(one.id) if was_known else None)
            if told:
                return await self._stopped(process, message, dict(told[-1]), is_first=is_first)
            if was_known or not wait:
                break
            await one.until_settled()
        if one.was_refused or (one.is_between and not wait):
            return one.cancelled()
        return None

    async def _stopped(
        self, process: ModelProcess, message: Cancel, answer: dict[str, Any], *, is_first: bool
    ) -> dict[str, Any]:
        """Return the answer after the computation has stopped: a process waits for that only for a while."""
        while message.wait and answer["outcome"] == "cancelled" and answer["cancel_latency_ms"] is None:
            is_first = False
            reply = await self._front.ask(process, message, Cancelled)
            told = {} if reply is None else merged_cancels(message.ids, [reply])
            if not told:
                break  # it has ended
            answer = dict(told[message.ids[0]][-1])
        if not is_first and answer["reason"] == CancelReason.EXPLICIT:
            answer["outcome"] = "cancelled"  # by the first message
        return answer

    async def _everywhere(
        self, ids: list[str], owner: str, processes: Collection[ModelProcess], *, wait: bool
    ) -> Answers:
        """Ask all processes. A live request is enough; one that has ended may be another one's elder, so the others
        have a moment to answer.
        """
        message = Cancel(owner=owner, ids=ids, wait=wait)
        asked = {asyncio.create_task(self._front.ask(one, message, Cancelled)): one for one in processes}
        self._left |= asked.keys()
        for task in asked:
            task.add_done_callback(self._left.discard)
        live: Answers = {}
        ended: Answers = {}
        pending = set(asked)
        while pending and len(live) < len(ids):
            grace = DEADLINE_SECONDS if len(live | ended) == len(ids) else None
            done, pending = await asyncio.wait(pending, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                if (reply := task.result()) is None:
                    continue
                for one in ids:
                    if reply.live.get(one):
                        told = dict(reply.live[one][-1])
                        live[one] = await self._stopped(
                            asked[task], message.model_copy(update={"ids": [one]}), told, is_first=True
                        )
                    elif reply.ended.get(one):
                        ended.setdefault(one, dict(reply.ended[one][-1]))
        return ended | live

    async def close(self) -> None:
        """End all questions. Idempotent."""
        for task in self._left:
            task.cancel()
        await asyncio.gather(*self._left, return_exceptions=True)
