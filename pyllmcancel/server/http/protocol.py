"""uvicorn's HTTP protocol with read time-outs, a watch on clients that pipeline, and our error bodies."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress
from enum import Enum, auto
from functools import partial
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.config import Certificate, ServerConfig
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.connection import CONNECTION, Connection
from pyllmcancel.server.http.connections import Connections
from pyllmcancel.server.http.heads import UNIX
from pyllmcancel.server.http.listening import is_unix
from pyllmcancel.server.http.request_context import new_request_id
from pyllmcancel.server.limits import LINGER_SECONDS, Limits
from pyllmcancel.server.timer import Timer

# Limit of bytes of the next requests that are read ahead; a client that sends more is not read until its turn comes.
READ_AHEAD = 1 << 20
# Bytes that are read before other connections have a turn: with fewer, reading takes longer. A kilobyte may be a
# hundred chunks, each an event of its own.
LEAST_AT_ONCE, MAX_AT_ONCE = 1 << 9, 1 << 12
READ_SECONDS = 0.002
# Health checks, lists and cancels need no turn: they are answered while hundreds of other requests begin.
AT_ONCE = re.compile(rb"GET |DELETE |POST \S+/cancel\b")
END_OF_HEAD = b"\r\n\r\n"


class Stage(Enum):
    """The stages of a connection, named after what it waits for."""

    HEAD = auto()  # of a request; the first, or one that has begun
    BODY = auto()
    ANSWER = auto()  # ours: the client has done its part
    NEXT = auto()  # request, of which nothing has come


def stage_of(conn: h11.Connection, *, served: bool) -> Stage:
    """Return the stage of a connection, which has `served` a request before, or not."""
    if conn.their_state is h11.SEND_BODY:
        return Stage.BODY
    if conn.their_state is not h11.IDLE:
        return Stage.ANSWER
    return Stage.NEXT if served and not conn.trailing_data[0] else Stage.HEAD


class WatchfulProtocol(H11Protocol):
    """uvicorn's protocol for HTTP/1.1, with additions for which uvicorn has no setting and no hook.

    No application can make them.

    - It reads on while an answer is under way. uvicorn stops reading when the next request of a connection arrives
      before the current one is answered, and only by reading is a closed connection noticed: a client that had
      pipelined, and then left, would hold its place in the queue, or its slot.
    - It limits the time for each part of a request. uvicorn's own time-out covers `Stage.NEXT` only.
    - Its `Connections` close the idlest connection for a new one. uvicorn's own limit refuses the new one.
    - A request's scope has its `Connection`, whose client is watched.
    - An error that comes before the application is called has the body of any other error.

    Overridden are asyncio's callbacks, and four methods of uvicorn's: `on_response_complete`, for no application knows
    when the last byte is written and the next request begins; `shutdown`, `send_400_response` and `_should_upgrade`,
    which uvicorn calls.
    """

    def __init__(self, limits: Limits, connections: Connections, *, served_by: str | None = None, **given: Any) -> None:
        super().__init__(**given)
        self._served_by = served_by
        self._limits = limits
        self._others = connections
        self._at_once = LEAST_AT_ONCE
        self._stage: Stage | None = None
        self._awaits_turn = False  # with a request whose head is complete
        self._connection: Connection | None = None  # set when the connection is made
        self._timer = Timer(self.loop)  # of its stage

    @property
    def address(self) -> str:
        """The address whose limits the connection counts towards; each connection of a proxy has one of its own."""
        if self.client is None:
            return ""
        host, port = self.client
        return f"{host}:{port}" if self._others.is_proxy(host) else host

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is None:
            connection = transport.get_extra_info("socket")
            if connection is not None and is_unix(connection):
                self.client = UNIX, connection.fileno()  # a number that tells it from others
        self._read_at_once(LEAST_AT_ONCE)
        self._connection = Connection(transport, self._limits, self)
        if not self._others.admit(self):
            self._refuse(ApiError(503, "too many connections", "server_error", code="too_many_connections"))
            return
        self.app_state = self.app_state | {CONNECTION: self._connection}
        self._note_stage()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.stop()
        if self._connection is not None:
            self._connection.closed()
        self._others.gone(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._connection is not None:
            self._connection.watch.bytes_wait()
            self._others.blocks(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._connection is not None:
            self._connection.watch.none_wait()
            self._others.flows(self)

    def data_received(self, data: bytes) -> None:
        between = self._stage in (Stage.HEAD, Stage.NEXT)
        # Part of a head is read at once: its time-out goes on.
        if between and END_OF_HEAD in data.lstrip() and not AT_ONCE.match(data):
            # Until its turn it neither sends more nor runs out of time, nor makes way for another connection.
            self.transport.pause_reading()
            self._timer.stop()
            self._unset_keepalive_if_required()
            self._stage, self._awaits_turn = None, True
            self._others.works(self)
            self._others.turns.wait(partial(self._take_turn, data))
        else:
            self._read(data)

    def _take_turn(self, data: bytes) -> None:
        self._awaits_turn = False
        if not self.transport.is_closing():
            self.transport.resume_reading()
            self._read(data)

    def _read(self, data: bytes) -> None:
        began = time.perf_counter()
        super().data_received(data)
        if time.perf_counter() - began > READ_SECONDS:
            self._read_at_once(LEAST_AT_ONCE)
        elif self._at_once < MAX_AT_ONCE:
            self._read_at_once(2 * self._at_once)
        self._go_on()

    def _read_at_once(self, size: int) -> None:
        self._at_once = size
        with suppress(AttributeError):  # asyncio's transports of sockets have it; uvloop's have none
            self.transport.max_size = size  # type: ignore[attr-defined]

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY:
            # Answered before the whole body came: the rest is read and dropped.
            self._timer.start(LINGER_SECONDS, self.transport.close)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Note what the connection waits for now, and read ahead."""
        # A pause while the body is incomplete is back-pressure, which `receive` lifts.
        pipelined = self.flow.read_paused and self.cycle is not None and not self.cycle.more_body
        if pipelined and len(self.conn.trailing_data[0]) < READ_AHEAD:
            self.flow.resume_reading()
        if pipelined and self._connection is not None:
            self._connection.on_ahead()
        self._note_stage()

    def shutdown(self) -> None:
        """Answer 503 to a request that has not begun; let another one end, and close the connection then."""
        if self._stage is Stage.BODY or self._awaits_turn:
            self._refuse(ApiError(503, "the server is shutting down", "server_error", code="shutdown"))
        elif self._stage is Stage.ANSWER:
            # Not uvicorn's: some versions tell the application that the client has left.
            self.cycle.keep_alive = False
        else:
            super().shutdown()

    # -- time-outs ----------------------------------------------------------------------------------------------------

    def _note_stage(self) -> None:
        stage = stage_of(self.conn, served=self.cycle is not None)
        if stage is self._stage or self.transport.is_closing():
            return
        self._stage = stage
        self._timer.stop()
        match stage:
            case Stage.ANSWER:
                self._others.works(self)
                return
            case Stage.HEAD:
                self._timer.start(self._limits.header_timeout, self._out_of_time)
            case Stage.BODY:
                self._timer.start(self._limits.body_timeout, self._out_of_time)
        self._others.waits(self)

    def _out_of_time(self) -> None:
        if self._stage is Stage.HEAD and not self.conn.trailing_data[0]:
            self.transport.close()
        else:
            self._refuse(ApiError(408, "the request did not come in time", code="request_timeout"))

    def give_way(self) -> None:
        """Close at once, to make room for another connection; no complete request is lost."""
        if self._stage is not Stage.NEXT:
            self._refuse(ApiError(503, "too many connections", "server_error", code="too_many_connections"))
        self.transport.abort()

    def has_stalled(self) -> None:
        """Cancel as stalled, and close at once: too many clients do not read, and this one has not for longest."""
        assert self._connection is not None
        self._connection.give_up(CancelReason.STALLED)

    def _should_upgrade(self) -> bool:
        """Answer in HTTP/1.1 without a warning: Java's client offers HTTP/2 with each first request."""
        return False

    # -- errors -------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP. The answer has an id, and the same body as any other error."""
        self._refuse(ApiError(400, msg, code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Answer, if that is possible, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            # In the middle of an answer, or after the last one, there is no place for another.
            self.transport.close()
            return
        response = error.response(new_request_id())
        headers = [*response.raw_headers, (b"connection", b"close")]
        if self._served_by is not None:
            headers.append((b"x-served-by", self._served_by.encode()))
        for event in (
            h11.Response(status_code=error.status, headers=headers),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()


def uvicorn_config(
    app: FastAPI, config: ServerConfig, connections: Connections, certificate: Certificate | None, *, patience: float
) -> uvicorn.Config:
    """Return uvicorn's settings. It waits `patience` seconds for answers when it ends."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the application has a layer for them; uvicorn would trust this machine's clients
        timeout_graceful_shutdown=patience,  # type: ignore[arg-type]
        timeout_keep_alive=config.limits.keep_alive,  # type: ignore[arg-type]
        http=partial(WatchfulProtocol, config.limits, connections, served_by=config.replica),  # type: ignore[arg-type]
        ws="none",
        ssl_keyfile=None if certificate is None else certificate.key,
        ssl_certfile=None if certificate is None else certificate.certificate,
    )
