"""The front's end of a link: a request on its way to a process, and the frames that come back.

See `pyllmcancel.server.behind`. Bodies go on to the client in the event loop's callback that has read them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from pyllmcancel.front.upstream import Broken, Head, WorkerConnection
from pyllmcancel.server.behind import BODY, HEAD, LINK, MARK, STATE
from pyllmcancel.server.delivered import Delivered

Frame = tuple[bytes, bytes]
"""A frame's kind and content."""
MAX_FRAME = 1 << 28


class Frames:
    """Decodes frames."""

    def __init__(self) -> None:
        self._rest = bytearray()  # of a frame that is not complete

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Iterate over the frames that are complete with these bytes; Broken if they are no frames."""
        self._rest += data
        while len(self._rest) >= HEAD.size:
            kind, length = HEAD.unpack_from(self._rest)
            if length > MAX_FRAME:
                raise Broken("not a frame")
            end = HEAD.size + length
            if end > len(self._rest):
                return
            content = bytes(self._rest[HEAD.size : end])
            del self._rest[:end]
            yield kind, content


class FrontLink(WorkerConnection):
    """A connection whose answer is frames; `delivered` follows what the answer's client gets.

    Bodies are passed on in the callback that has read them: waking a task for each token would cost more than
    all other work here.
    """

    def __init__(self, *, has_body: bool) -> None:
        super().__init__(has_body=has_body)
        self.delivered = Delivered()
        self._frames: Frames | None = None  # once the head has said that they come
        self._read: deque[Frame] = deque()
        self._error: Broken | None = None  # what comes is no frame
        # Takes a piece of the answer's body, when there is nothing before it; returns False if it can take no more now.
        self.pass_on: Callable[[bytes], bool] | None = None

    async def head(self) -> Head:
        head = await super().head()
        if head.get(LINK) == b"1":
            self._frames = Frames()
            self.data_received(self._http.trailing_data[0])
        return head

    async def next(self) -> Frame:
        """Return the next frame that was not passed on; Broken if the process has ended, or sends what is none.

        An empty piece of the body says that its client does not keep up.
        """
        while not self._read:
            if self._is_closed or self._error is not None:
                raise self._error or Broken
            await self._next()
        return self._read.popleft()

    def command(self, command: bytes) -> None:
        """Have the process act on a command, after what it got before."""
        self.write(command + b"\n")

    def data_received(self, data: bytes) -> None:
        if self._frames is None:
            super().data_received(data)
            return
        try:
            self._sort(self._frames.feed(data))
        except Broken as error:
            self._error = error
        if self._read or self._error is not None:
            self._wake()

    def _sort(self, frames: Iterable[Frame]) -> None:
        for kind, content in frames:
            if kind == MARK:
                if self.delivered.note_mark(content):
                    self.pass_on = None  # what comes is an error, and may not be the last word
            elif kind == BODY and self.pass_on is not None and not self._read:
                self.delivered.add(content)
                if not self.pass_on(content):
                    self._read.append((BODY, b""))
            elif kind == STATE:  # it overtakes what waits for the client
                place = next((i for i, (one, _) in enumerate(self._read) if one == BODY), len(self._read))
                self._read.insert(place, (kind, content))
            else:
                self._read.append((kind, content))
