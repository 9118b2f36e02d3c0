"""uvicorn's HTTP protocol: who pipelines is watched like any other, errors are ours, requests know their connection."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from pyllmcancel.server.connection import CONNECTION, Connection
from pyllmcancel.server.error_responses import ApiError
from pyllmcancel.server.request_context import new_request_id

# Bytes of the next requests that are read ahead; a client that sends more is read no further until its turn comes.
READ_AHEAD = 1 << 20


class WatchfulProtocol(H11Protocol):
    """Reads on while an answer is under way.

    uvicorn stops reading when the next request of a connection arrives before the answer to the current one is
    complete. But the end of a connection shows to those only who read from it: a client that had pipelined, and then
    left, would hold its place in the queue, or its slot.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = self.app_state | {CONNECTION: Connection(transport)}

    def handle_events(self) -> None:
        super().handle_events()
        # A pause while the body is incomplete is back-pressure, which `receive` lifts.
        pipelined = self.flow.read_paused and self.cycle is not None and not self.cycle.more_body
        if pipelined and len(self.conn.trailing_data[0]) < READ_AHEAD:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets the same body as any other error, and an id."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # In the middle of an answer, or after one that was the last: there is no place for another.
            self.transport.close()
            return
        response = ApiError(400, msg, code="invalid_http").response(new_request_id())
        headers = [*response.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()
