"""Cancels by id, session or filter, of requests that wait here, are on their way to a process, or are known to one.

1. A request that waits here ends here. One that was sent is cancelled by its process, which need not know it yet: then
   the process cancels it when it accepts it, since the request has arrived in front before the cancel.
2. Requests that are not listed here, and groups, are looked for in all processes. Each is asked by itself, so that none
   waits for another.
3. With `wait` a process is asked again for each request, until its computation has stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.errors import QueueFullError
from pyllmcancel.router.front import Asking
from pyllmcancel.router.routed import By, mark_of
from pyllmcancel.server.fleet import messages
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS
from pyllmcancel.server.fleet.view import slices
from pyllmcancel.server.requests.visible import only, without_prefix

if TYPE_CHECKING:
    from pyllmcancel.router.front import Front
    from pyllmcancel.router.process import ModelProcess
    from pyllmcancel.router.routed import RoutedRequest, RoutedRequests
    from pyllmcancel.server.requests.answers import LiveStatus

G = TypeVar("G", bound=messages.FamilyCancelled | messages.Matched)
Answers = dict[str, Any]  # by id
Told = dict[str, tuple["ModelProcess", dict[str, Any]]]  # by id: which process has the request, and its first answer


class Cancels:
    """Cancels requests, and reports how they ended. Used in the event loop only."""

    def __init__(self, requests: RoutedRequests, front: Front) -> None:
        self._requests = requests
        self._front = front

    # -- whose they are, for an administrator who names no owner ------------------------------------------------------

    async def owners_of(self, ids: Collection[str], hold: float = 0.0) -> dict[str, str]:
        return await self._owners(
            messages.WhoseRequest(ids=list(ids)), {one: self.find(None, one) for one in ids}, hold
        )

    async def owner_of_session(self, name: str, hold: float) -> str:
        here = {name: self._requests.named(None, By.SESSION, name)}
        return (await self._owners(messages.WhoseSession(sessions=[name]), here, hold))[name]

    async def _owners(
        self, message: messages.Message, here: Mapping[str, list[RoutedRequest]], hold: float
    ) -> dict[str, str]:
        """Return the owner of each name. ApiError if several owners have one, or if one that no owner has is to be
        held.
        """
        told = [one.owners for one in (await self._front.ask_all(message, messages.Owned)).values() if one is not None]
        owners = {name: {one.owner for one in requests} for name, requests in here.items()}
        return {name: only(some.union(*(one.get(name, ()) for one in told)), hold) for name, some in owners.items()}

    # -- by id --------------------------------------------------------------------------------------------------------

    async def by_id(self, ids: Collection[str], owner: str, silent: set[ModelProcess], *, wait: bool) -> Answers:
        """Cancel an owner's requests of these ids; return the answers about those that are known. To `silent` are added
        the processes that did not answer, which may know the others.
        """
        seen: set[RoutedRequest] = set()
        found = await self._listed(ids, owner, seen, wait=wait)
        if rest := [one for one in ids if one not in found]:
            found |= await self._everywhere(rest, owner, silent, wait=wait)
        return found | await self._listed([one for one in ids if one not in found], owner, seen, wait=wait)

    async def _listed(self, ids: Collection[str], owner: str, seen: set[RoutedRequest], *, wait: bool) -> Answers:
        """Cancel those that are listed here, and those that come meanwhile. Nothing is awaited after the last look, so
        that a request which comes later can be held.
        """
        found = Answers()
        while new := {one: some for one in ids if (some := [r for r in self.find(owner, one) if r not in seen])}:
            seen.update(*new.values())
            answers = await asyncio.gather(*(self.of(some, wait=wait) for some in new.values()))
            found |= {one: next(iter(told.values())) for one, told in zip(new, answers, strict=True) if told}
        return found

    def find(self, owner: str | None, request_id: str) -> list[RoutedRequest]:
        names = (request_id, *without_prefix(request_id))
        return [one for name in names for one in self._requests.named(owner, By.ID, name)]

    async def _everywhere(self, ids: list[str], owner: str, silent: set[ModelProcess], *, wait: bool) -> Answers:
        """Ask all processes. A live request is enough; one that has ended may be another one's elder, so the others
        have a moment to answer.
        """
        live, ended, asking = Told(), Answers(), Asking(self._front, messages.Cancelled)
        asking.send(messages.Cancel(owner=owner, ids=ids, wait=False))
        while len(live) < len(ids):
            told = await asking.next(DEADLINE_SECONDS)
            if told is None:
                silent |= asking.silent
                break
            process, reply = told
            live |= {one: (process, {**reply.live[one][-1]}) for one in ids if reply.live.get(one)}
            ended = {one: {**reply.ended[one][-1]} for one in ids if reply.ended.get(one)} | ended
        return ended | await self._all_stopped(live, owner, wait=wait)

    # -- groups -------------------------------------------------------------------------------------------------------

    async def by_session(
        self, name: str, owner: str, hold: float, silent: set[ModelProcess], *, descendants: bool, wait: bool
    ) -> tuple[set[str], Answers]:
        """Cancel the requests of a session and, with `descendants`, of those below it, also those that come within
        `hold` seconds; return the names of the known ones, and the answers.

        One process may know the child of a session, another one the child of that child: all are asked for each name.
        QueueFullError if the owner has too many holds.
        """
        group, known, asked = Group(self._front, messages.FamilyCancelled), set[str](), set[str]()
        hold_all = partial(self._requests.holds.hold_session, owner, seconds=hold, descendants=descendants)
        if hold > 0.0:
            hold_all(name)

        def reach(names: set[str]) -> None:
            for some in slices(sorted(names - asked)):
                asked.update(some)
                group.send(messages.CancelFamilies(owner=owner, sessions=some, descendants=descendants, wait=False))
                for one in some:
                    members = self._requests.family(owner, one, descendants=descendants)
                    known.update({one} if members else ())
                    known.update(name for by, name in chain(*(one.names for one in members)) if by is By.SESSION)
                    group.add(members, self.of([one for one in members if not one.is_known], wait=wait))
            if descendants and not known <= asked:
                reach(known)

        reach({name})
        while (reply := await group.heard(DEADLINE_SECONDS)) is not None:
            known.update(reply.sessions)
            reach(known if descendants else set())
        silent |= group.silent
        for one in known:
            with suppress(QueueFullError):  # also for those that have arrived, and whose bodies have not
                hold_all(one)
        return known, await group.answers(self._all_stopped(group.told, owner, wait=wait))

    async def by_filter(
        self, session: str | None, status: LiveStatus | None, owner: str | None, *, wait: bool
    ) -> Answers:
        """Cancel the requests that match what is given; everybody's if no owner is."""
        group = Group(self._front, messages.Matched)
        group.send(messages.CancelMatching(owner=owner, session=session, status=status, wait=wait))
        matching = [one for one in self._requests.of(owner) if session in (None, one.wishes.session)]
        group.add(matching, self._strangers(matching, status, owner, wait=wait))
        while await group.heard(DEADLINE_SECONDS) is not None:
            pass
        return await group.answers(self._all_stopped(group.told, owner, wait=wait))

    async def _strangers(
        self, requests: list[RoutedRequest], status: LiveStatus | None, owner: str | None, *, wait: bool
    ) -> Answers:
        """Cancel those that no process knows, and which thus are waiting."""
        if status == "running":
            return {}
        here, between = [one for one in requests if one.waits], [one for one in requests if one.is_between]
        found = await self.of(here, wait=wait)
        if between and status is not None:
            replies = await self._front.ask_all(messages.ListRequests(owner=owner), messages.Requests)
            known = {mark_of(entry) for reply in replies.values() if reply is not None for entry in reply.data}
            between = [one for one in between if one.mark not in known]
        return found | await self.of(between, wait=wait)

    # -- requests that are listed here --------------------------------------------------------------------------------

    async def of(self, requests: Collection[RoutedRequest], *, wait: bool) -> Answers:
        """Cancel those of the requests that have not ended."""
        requests = [one for one in requests if one in self._requests]
        found = {one.id: one.cancelled() for one in requests if one.cancel()}
        sent = [one for one in requests if not one.waits]
        for one, answer in zip(sent, await asyncio.gather(*(self._sent(one, wait=wait) for one in sent)), strict=True):
            if answer is not None:
                found.setdefault(one.id, answer)
        return found

    async def _sent(self, one: RoutedRequest, *, wait: bool) -> dict[str, Any] | None:
        """Have its process cancel a request; return the answer, or None if there is none.

        Should the process end before it gets the request, that is cancelled here.
        """
        process = one.process
        assert process is not None
        message = messages.Cancel(owner=one.owner, ids=[one.id], wait=wait, on_their_way=True)
        was_known = False
        while not was_known:
            was_known = not one.is_between or one.process is not process
            reply = await self._front.ask(process, message, messages.Cancelled)
            if reply is None:
                # Its process has ended, or is stuck. From one that has ended it comes back in a moment.
                with suppress(TimeoutError):
                    async with asyncio.timeout(DEADLINE_SECONDS):
                        await one.until_settled()
                break
            # One that has ended may be an older one, while this one is not known yet.
            if told := reply.live.get(one.id) or (reply.ended.get(one.id) if was_known else None):
                return await self._stopped(process, one.owner, by_us({**told[-1]}), wait=wait)
            if not wait:
                break
            await one.until_settled()
        return one.cancelled() if one.was_refused or (one.is_between and not wait) else None

    # -- until they have stopped --------------------------------------------------------------------------------------

    async def _all_stopped(self, told: Told, owner: str | None, *, wait: bool) -> Answers:
        asked = (self._stopped(process, owner, answer, wait=wait) for process, answer in told.values())
        return dict(zip(told, await asyncio.gather(*asked), strict=True))

    async def _stopped(
        self, process: ModelProcess, owner: str | None, answer: dict[str, Any], *, wait: bool
    ) -> dict[str, Any]:
        """Return the answer after the computation has stopped: a process waits for that only for a while."""
        began = time.monotonic()
        while wait and owner is not None and answer["outcome"] == "cancelled" and answer["cancel_latency_ms"] is None:
            message = messages.Cancel(owner=owner, ids=[answer["id"]], wait=True)
            if (reply := await self._front.ask(process, message, messages.Cancelled)) is None:
                break  # its process has ended, or is stuck
            told = reply.live.get(answer["id"]) or reply.ended.get(answer["id"])
            # A request that was refused meanwhile is not known any more.
            latest = {**told[-1]} if told else {"cancel_latency_ms": round((time.monotonic() - began) * 1e3, 3)}
            answer = by_us(answer | latest)
        return answer


def by_us(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer about a request that was live when it was cancelled here, and may have ended since."""
    return answer | ({"outcome": "cancelled"} if answer["reason"] == CancelReason.EXPLICIT else {})


class Group(Asking[G]):
    """The messages that cancel a group of requests, and the cancels of those members that no process may know."""

    def __init__(self, front: Front, reply: type[G]) -> None:
        super().__init__(front, reply)
        self.told = Told()
        self._processes: set[ModelProcess] = set()  # that have members, as far as it is known here
        self._unknown: list[asyncio.Task[Answers]] = []

    def add(self, members: Iterable[RoutedRequest], cancels: Coroutine[Any, Any, Answers]) -> None:
        self._processes |= {one.process for one in members if one.process is not None}
        self._unknown.append(self._front.spawn(cancels))

    async def heard(self, seconds: float | None) -> G | None:
        """Return the next reply; None if there will be none, or only processes without members are silent for so
        long.
        """
        told = await self.next(None if self._processes & self.silent else seconds)
        if told is None:
            return None
        process, reply = told
        self.told |= {one["id"]: (process, {**one}) for one in reply.requests}
        return reply

    async def answers(self, stopped: Coroutine[Any, Any, Answers]) -> Answers:
        """Return all answers; of two about one request, that of its cancel."""
        found = Answers()
        for some in await asyncio.gather(*self._unknown, stopped):
            found |= {name: one for name, one in some.items() if name not in found or one["outcome"] == "cancelled"}
        return found
