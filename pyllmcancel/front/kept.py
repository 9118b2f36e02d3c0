"""A stream that the front keeps: a process computes it, a relay writes it, and its client is one of its readers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pyllmcancel.front.forwarding import is_stream
from pyllmcancel.requests.token_stream import Stream
from pyllmcancel.server.errors.shapes import ANTHROPIC, shape_of
from pyllmcancel.server.streams.kept import KeptAnswer
from pyllmcancel.server.streams.reading import KeptResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message

    from pyllmcancel.front.forwarding import ClientAnswer
    from pyllmcancel.front.requests import FrontRequest, FrontRequests
    from pyllmcancel.server.answer_events import ErrorForReader, Write
    from pyllmcancel.server.streams.kept_answers import KeptAnswers


class KeptSend:
    """The ``send`` of an answer that is kept if it is a stream. Made, and called, by the task that relays it.

    Attributes
    ----------
    kept
        The answer, whose events are what is sent.
    response
        The client's reading of it; None if it has not begun, or is no stream and goes to the client.
    """

    def __init__(
        self,
        request: FrontRequest,
        requests: FrontRequests,
        streams: KeptAnswers[KeptAnswer],
        answer: ClientAnswer,
        on_begun: Callable[[], object],
    ) -> None:
        assert request.keeping is not None
        streams.make_room(request.owner, request.keeping.name)
        self.names_events = shape_of(answer.scope) is ANTHROPIC or "/responses" in answer.scope["path"]
        self.kept = KeptAnswer(request.keeping, Stream(request, requests), self)
        self.response: KeptResponse | None = None
        self._streams = streams
        self._send = answer.send
        self._on_begun = on_begun
        self._task = asyncio.current_task()

    async def __call__(self, message: Message) -> None:
        if self.response is not None:
            if message["body"]:
                self.kept.log.write(message["body"])
        elif message["type"] == "http.response.start" and is_stream(message["headers"]):
            self._streams.begin(self.kept)
            self.response = KeptResponse(self.kept, headers=message["headers"])
            self._on_begun()
        else:
            await self._send(message)

    # -- as `AnswerEvents` --------------------------------------------------------------------------------------------

    async def write_to(self, _write: Write, _error_for_reader: ErrorForReader) -> bool:
        """Wait until the task, which writes them, has ended."""
        assert self._task is not None
        await asyncio.wait([self._task])
        return True

    async def break_off(self, write: Write | None, error: Exception) -> None:
        """The task has done so."""
