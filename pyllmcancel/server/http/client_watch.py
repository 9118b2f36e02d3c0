"""Clients that do not close their connection: those that vanish without a FIN or a RST, and those that stop reading.

Two times are kept for each connection, both as reported by the kernel (``TCP_INFO``):

- **Silence.** A client that sent nothing for `client_timeout` seconds, not even an acknowledgement, has vanished. On an
  idle connection the kernel sends keepalive probes from half of that time on, one each second. Unacknowledged data are
  sent again by the kernel itself. So such a silence means many packets without an answer.
- **A stall.** A client that has acknowledged no new byte for `reader_stall` seconds, while bytes waited in this
  process, does not read.

The kernel's data distinguish the two. A connection whose window is closed is probed at growing intervals, without
keepalive, so its silence means nothing: only the stall counts there, even if the client vanishes later. If the window
shrinks below what is in flight, the same data are sent again at growing intervals, and each time answered.

``TCP_USER_TIMEOUT`` is not set. It counts from the first retransmission, which may come a whole silence after the
client vanished. It would also end a connection whose window was closed for that time, although each probe was answered:
every reader that pauses would count as vanished.

A look costs one system call. The next look is at the earliest moment at which one of the times can have run out, not at
regular intervals.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.limits import UNSENT_BYTES, Limits
from pyllmcancel.server.timer import Timer

# Fields of Linux's struct tcp_info, which never move: tcpi_unacked, tcpi_last_data_sent, tcpi_last_data_recv and
# tcpi_last_ack_recv (milliseconds since), tcpi_bytes_acked, tcpi_notsent_bytes.
TCP_INFO = struct.Struct("=24x I 16x I 4x II 60x Q 16x I")
MAX_PROBES = 127  # Linux's limit
ANSWER_SECONDS = 1.0  # for an answer to the last data, which may be another try after a long pause
NEVER = math.inf


class TcpInfo(NamedTuple):
    """The kernel's data of a connection."""

    n_in_flight: int  # segments that were sent and are not acknowledged
    since_sent: float  # seconds since data were sent
    since_heard: float  # seconds since anything came
    acknowledged: int  # the bytes that the client's side has taken so far
    unsent: int  # the bytes that the kernel holds and has not sent

    @property
    def window_closed(self) -> bool:
        """True if there are data to send that the client's side does not take."""
        return self.unsent > 0 and self.n_in_flight == 0

    @property
    def answered(self) -> bool:
        """True if the client's side has answered the last data, though it did not take them: its window has shrunk."""
        return self.n_in_flight > 0 and self.since_heard <= self.since_sent


def tcp_info(connection: socket.socket) -> TcpInfo | None:
    """Return the kernel's data; None if the system does not report them, or the connection is closed."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
    except OSError:
        return None
    if len(raw) < TCP_INFO.size:
        return None
    n_in_flight, sent, data, acknowledgement, n_acknowledged, unsent = TCP_INFO.unpack(raw)
    return TcpInfo(n_in_flight, sent / 1e3, min(data, acknowledgement) / 1e3, n_acknowledged, unsent)


def set_socket_options(connection: socket.socket, client_timeout: float) -> None:
    """Make the kernel probe the connection for `client_timeout` seconds (0: no probes), and keep little unsent data.

    By default a kernel takes megabytes for a client that does not read: ten thousand tokens would be computed for
    nobody.
    """
    if connection.family == socket.AF_UNIX:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNSENT_BYTES)
        return
    options = [(socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", UNSENT_BYTES)]
    if client_timeout > 0:
        idle, n_probes = probing(client_timeout)
        options += [
            (socket.IPPROTO_TCP, "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE", idle),
            (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 1),
            (socket.IPPROTO_TCP, "TCP_KEEPCNT", n_probes),
            (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        ]
    for level, name, value in options:
        # Not every system has all of them.
        with suppress(AttributeError, OSError):
            connection.setsockopt(level, getattr(socket, name), value)


def probing(client_timeout: float) -> tuple[int, int]:
    """Return the seconds of silence until the first probe, and the number of probes, one a second."""
    seconds = math.ceil(client_timeout)
    n_probes = max(1, min(seconds // 2, MAX_PROBES))
    return max(1, seconds - n_probes), n_probes


class ClientWatch:
    """Watches a client in the event loop. `on_gone` is called once: DISCONNECT if it has vanished, or STALLED."""

    def __init__(
        self,
        transport: asyncio.Transport,
        limits: Limits,
        on_gone: Callable[[CancelReason], object],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._buffered = transport.get_write_buffer_size
        self._client_timeout = limits.client_timeout or NEVER
        self._reader_stall = limits.reader_stall or NEVER
        self._on_gone = on_gone
        self._loop = loop
        self._began = loop.time()
        self._timer = Timer(loop)
        # Set while bytes wait in this process: since when the client has taken nothing (monotonic seconds), and how
        # much it had taken by then.
        self._stalled_since: float | None = None
        self._taken = 0
        self._stopped = False
        set_socket_options(self._socket, limits.client_timeout)
        self._look()

    def bytes_wait(self) -> None:
        """Note that there are bytes that the kernel does not take."""
        self._stalled_since = self._loop.time()
        self._taken = self._n_taken(tcp_info(self._socket))
        self._look_within(self._reader_stall)

    def none_wait(self) -> None:
        """Note that the kernel has taken all bytes."""
        self._stalled_since = None

    def stop(self) -> None:
        """Idempotent."""
        self._stopped = True
        self._timer.stop()

    def _look(self) -> None:
        info = tcp_info(self._socket)
        silent, stalled = self._until_silent(info), self._until_stalled(info)
        if min(silent, stalled) > 0.0:
            self._look_within(min(silent, stalled))
            return
        self.stop()
        self._on_gone(CancelReason.DISCONNECT if silent <= 0.0 else CancelReason.STALLED)

    def _look_within(self, seconds: float) -> None:
        if not self._stopped and seconds < NEVER:
            self._timer.start(seconds, self._look, or_earlier=True)

    def _until_silent(self, info: TcpInfo | None) -> float:
        """Return the seconds until the client may have been silent for too long."""
        if info is None:
            return NEVER  # keepalive closes the connection
        if info.window_closed or info.answered:
            return self._client_timeout  # the kernel's next try may come after more than this
        # The kernel does not probe before `set_socket_options`. A busy server may accept a connection long after its
        # client's last data, and that silence is the server's.
        left = self._client_timeout - min(info.since_heard, self._loop.time() - self._began)
        return max(left, ANSWER_SECONDS - info.since_sent) if info.n_in_flight else left

    def _until_stalled(self, info: TcpInfo | None) -> float:
        """Return the seconds until the client may have stalled."""
        if self._stalled_since is None:
            return NEVER
        now = self._loop.time()
        taken = self._n_taken(info)
        if taken != self._taken:
            self._taken = taken
            # The time of the last progress, as far as it is known: data are sent when there is room for them, that is,
            # after it.
            self._stalled_since = max(self._stalled_since, now - (info.since_sent if info is not None else 0.0))
        return self._stalled_since + self._reader_stall - now

    def _n_taken(self, info: TcpInfo | None) -> int:
        """Return a number that changes with what the client takes, as far as the system says it."""
        return (0 if info is None else info.acknowledged) - self._buffered()
