"""What carries messages between the replicas of an application: `DeploymentHandle.broadcast`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pyllmcancel.server.fleet.outbox import Outbox, arrived
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS, Answer

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.messages import Message, News

logger = logging.getLogger("pyllmcancel.ray")

METHOD = "hear"  # of `pyllmcancel.ray.replica.Replica`
UNKNOWN = "a replica"  # Ray does not say which one it was that has not answered


class Handle(Protocol):
    """Of Ray's `DeploymentHandle`, what is used."""

    def broadcast(self, method_name: str, *args: Any) -> Any: ...


class BroadcastTransport:
    """A `pyllmcancel.server.fleet.transport.Transport`. Used by the event loop for users' code only.

    Ray broadcasts to the replicas that its controller has told to be running: not to one that drains.

    Parameters
    ----------
    handle
        Of this application's own deployment.
    name
        Of this replica. It is among those that a broadcast reaches, and answers itself nothing.
    """

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self._name = name
        self._heard: Callable[[list[Answer]], None] = lambda _: None
        self._outbox = Outbox("the other replicas", self._tell)

    def start(self, heard: Callable[[list[Answer]], None]) -> None:
        """Ray does the looking."""
        self._heard = heard

    async def ask_all(self, message: Message) -> list[Answer]:
        """Ask all at once; one answer for each, in `DEADLINE_SECONDS` at most. Does not raise."""
        until = time.monotonic() + DEADLINE_SECONDS
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                sent = self._handle.broadcast(METHOD, self._name, message.model_dump(mode="json"))
                # Not `results_async`: one that hangs would take the others' answers with it.
                results = await sent._fetch_replica_results_async()
        except Exception as error:
            logger.warning("the other replicas cannot be asked: %s", said(error))
            return [Answer(UNKNOWN, error=said(error))]
        asked = [asyncio.ensure_future(one.get_async()) for one in results]
        rest = max(0.0, until - time.monotonic())
        done, late = await asyncio.wait(asked, timeout=rest) if asked else (set(), set())
        for one in late:
            one.cancel()
        answers = [answer_of(one) for one in done] + [Answer(UNKNOWN, error="no answer in time") for _ in late]
        return [answer for answer in answers if answer.replica != self._name]

    def tell_all(self, news: News) -> None:
        """Pass this on soon, without waiting. Of one key only the newest has to arrive."""
        self._outbox.put(news)

    async def _tell(self, message: Message) -> bool:
        answers = await self.ask_all(message)
        self._heard(answers)
        return arrived(answers)

    async def close(self) -> None:
        """Idempotent."""
        await self._outbox.close()


def answer_of(done: asyncio.Future[tuple[str, Mapping[str, Any] | None]]) -> Answer:
    """What a replica has answered: its name, and a reply."""
    error = done.exception()
    return Answer(UNKNOWN, error=said(error)) if error is not None else Answer(*done.result())


def said(error: BaseException) -> str:
    """In one line: Ray's errors have the other side's trace in them."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
