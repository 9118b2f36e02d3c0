"""All answers of one kind that go on without a reader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import Request, RequestSummary
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.streams.kept import KeptAnswer
from pyllmcancel.shares import Owners, Shares

A = TypeVar("A", bound=KeptAnswer)


class KeptAnswers(Generic[A]):
    """Kept answers by their owners, of which there may be several, and names. Used in the event loop only.

    The limit is of their number, and with it of their memory. The oldest one that has ended makes room for a new one.
    """

    def __init__(self, limit: int, owners: Owners) -> None:
        self._answers: dict[tuple[str, str], A] = {}  # by owner and name, oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._shares = Shares(limit, owners)

    def __iter__(self) -> Iterator[A]:
        return iter(self._answers.values())

    def named(self, owner: str, name: str) -> A | None:
        return self._answers.get((owner, name))

    def find(self, owner: str, name: str) -> A | None:
        """Return the answer of this name or, if there is none, the answer to the request of this id."""
        return self.named(owner, name) or self.of_request(owner, name)

    def of_request(self, owner: str, request_id: str) -> A | None:
        """Return the answer to a request; the last one, if the id has been used again."""
        newest_first = reversed(self._answers.values())
        return next((one for one in newest_first if (one.owner, one.request.id) == (owner, request_id)), None)

    def readers_of(self, request: Request | RequestSummary) -> int | None:
        """Return the number of readers of a request's answer; None if it is not kept."""
        kept = self.of_request(request.owner, request.id)
        return kept.n_readers if kept is not None and kept.request.created_at == request.created_at else None

    def make_room(self, owner: str, name: str) -> None:
        """Make room for an answer of this name; ApiError 429 if too many go on."""
        if (owner, name) in self._answers:
            return  # it will be replaced
        while not self._shares.has(owner):
            own = [kept for kept in self if kept.owner == owner]  # if there is none, another's makes room
            ended = next((kept for kept in own or self if kept.log.ended), None)
            if ended is None:
                message = "too many streams go on that can be taken up again: cancel some, or wait for their ends"
                raise ApiError(429, message, "rate_limit_error", code="too_many_streams")
            self.forget(ended)

    def begin(self, kept: A) -> None:
        """Write an answer, to be found in place of one of its name; ApiError 429, and a cancel, if too many go on."""
        older = self.named(kept.owner, kept.name)
        if older is not None and older.request.arrived_at > kept.request.arrived_at:
            kept.cancel(CancelReason.SUPERSEDED)  # it arrived first, and was accepted later
        else:
            if older is not None:
                older.cancel(CancelReason.SUPERSEDED)
                self.forget(older)
            try:
                self.make_room(kept.owner, kept.name)
            except ApiError:
                kept.cancel()
                raise
            self._shares.take(kept.owner)
            self._answers[kept.owner, kept.name] = kept
        task = asyncio.create_task(self._run(kept), name=f"keep {kept.request.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, kept: A) -> None:
        try:
            await kept.run()
        finally:
            if kept.ends_at_once:
                self.forget(kept)
            elif self._is_findable(kept):
                kept.expire(self.forget)

    def _is_findable(self, kept: A) -> bool:
        return self.named(kept.owner, kept.name) is kept

    async def delete(self, kept: A) -> None:
        """Cancel and forget an answer, and wait until nothing is computed for it any more."""
        kept.cancel()
        self.forget(kept)
        await kept.stopped()

    def forget(self, kept: A) -> None:
        """Let an answer be found no longer; those who read it read on. Idempotent."""
        if self._is_findable(kept):
            del self._answers[kept.owner, kept.name]
            self._shares.give_back(kept.owner)
            kept.timer.stop()  # it has ended, or is cancelled

    async def close(self) -> None:
        """Cancel all answers that go on, and wait until their ends are written. Idempotent."""
        for kept in self:
            kept.cancel(CancelReason.SHUTDOWN)
        if self._tasks:
            await asyncio.wait(self._tasks)
        for kept in list(self):
            self.forget(kept)


class StreamGauges(Collector):
    """Read at each scrape, in the event loop."""

    def __init__(self, streams: KeptAnswers[KeptAnswer]) -> None:
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        kept = list(self._streams)
        unread = [one for one in kept if not (one.log.ended or one.n_readers)]
        n_bytes = sum(one.log.end - one.log.begin for one in kept)
        for name, value, text in (
            ("streams_kept", len(kept), "Streams that can be taken up again, those that have ended included."),
            ("streams_unread", len(unread), "Those of them that are being generated, and that no client reads."),
            ("streams_bytes", n_bytes, "Bytes of the streams that can be taken up again."),
        ):
            yield GaugeMetricFamily(f"pyllmcancel_{name}", text, value)
