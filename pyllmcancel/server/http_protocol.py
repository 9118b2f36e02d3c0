"""uvicorn's HTTP protocol, with one change: a client that pipelines is watched like any other."""

from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol

# Bytes of the next requests that are read ahead; a client that sends more is read no further until its turn comes.
READ_AHEAD = 1 << 20


class WatchfulProtocol(H11Protocol):
    """Reads on while an answer is under way.

    uvicorn stops reading when the next request of a connection arrives before the answer to the current one is
    complete. But the end of a connection shows to those only who read from it: a client that had pipelined, and then
    left, would hold its place in the queue, or its slot.
    """

    def handle_events(self) -> None:
        super().handle_events()
        # A pause while the body is incomplete is back-pressure, which `receive` lifts.
        pipelined = self.flow.read_paused and self.cycle is not None and not self.cycle.more_body
        if pipelined and len(self.conn.trailing_data[0]) < READ_AHEAD:
            self.flow.resume_reading()
