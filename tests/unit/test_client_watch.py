"""When a client counts as vanished, and when as one that does not read."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.http import client_watch
from pyllmcancel.server.http.client_watch import ClientWatch, TcpInfo, probing, set_socket_options, tcp_info
from pyllmcancel.server.limits import UNSENT_BYTES, Limits
from tests.support.http_process import until


class Clock:
    """Stands where an event loop stands: timers go off when a test lets time pass."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.n_calls = 0
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, callback: Callable[[], None]) -> Timer:
        self._timers.append(Timer(at, callback))
        return self._timers[-1]

    def pass_until(self, then: float) -> None:
        """Let time pass until `then`, in seconds since the beginning."""
        while due := [timer for timer in self._timers if timer.callback and timer.at <= 1_000.0 + then]:
            timer = min(due, key=lambda one: one.at)
            self._timers.remove(timer)
            self.now = timer.at
            self.n_calls += 1
            timer.callback()
        self.now = 1_000.0 + then


class Timer:
    """Without `when`, as some of uvloop's are."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at = at
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Rig:
    """A watch over a connection whose state the test sets. Times are in seconds since the beginning."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]) -> None:
        self.clock = Clock()
        self.heard_at = self.sent_at = 0.0
        self.n_in_flight = self.unsent = self.acknowledged = self.buffered = 0
        self.tells = True
        self.gone: list[tuple[CancelReason, float]] = []
        self._socket = pair[0]
        monkeypatch.setattr(client_watch, "tcp_info", self._info)

    def watch(self, **limits: float) -> ClientWatch:
        arguments: Any = (self, Limits(**limits), self._note, self.clock)
        return ClientWatch(*arguments)

    @property
    def now(self) -> float:
        return self.clock.now - 1_000.0

    def _note(self, reason: CancelReason) -> None:
        self.gone.append((reason, self.now))

    def _info(self, _: socket.socket) -> TcpInfo | None:
        since = self.now - self.sent_at, self.now - self.heard_at
        return TcpInfo(self.n_in_flight, *since, self.acknowledged, self.unsent) if self.tells else None

    def gone_by(self, then: float) -> list[tuple[CancelReason, float]]:
        self.clock.pass_until(then)
        return self.gone

    # -- of a transport -----------------------------------------------------------------------------------------------

    def get_extra_info(self, _: str) -> socket.socket:
        return self._socket

    def get_write_buffer_size(self) -> int:
        return self.buffered


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A server's end of a connection, and its client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        server.setblocking(False)
        yield server, client


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, pair: tuple[socket.socket, socket.socket]) -> Rig:
    return Rig(monkeypatch, pair)


# -- silence ----------------------------------------------------------------------------------------------------------


def test_silence_ends_at_its_time_whatever_was_sent_meanwhile(rig: Rig) -> None:
    rig.watch(client_timeout=20.0)
    rig.clock.pass_until(5.0)
    rig.heard_at = 5.0
    rig.clock.pass_until(19.0)
    rig.n_in_flight, rig.sent_at = 1, 19.0
    assert rig.gone_by(100.0) == [(CancelReason.DISCONNECT, 25.0)]


def test_a_client_that_is_heard_now_and_then_stays_and_is_seldom_looked_at(rig: Rig) -> None:
    rig.watch(client_timeout=20.0)
    for second in range(0, 1_000, 10):
        rig.clock.pass_until(second)
        rig.heard_at = second
    assert rig.gone == []
    assert rig.clock.n_calls <= 100


def test_silence_before_the_connection_was_accepted_does_not_count(rig: Rig) -> None:
    rig.heard_at = -30.0
    rig.watch(client_timeout=20.0)
    assert rig.gone_by(19.0) == []
    rig.heard_at = 18.0  # the answer to a probe
    assert rig.gone_by(37.0) == []
    assert rig.gone_by(39.0) == [(CancelReason.DISCONNECT, 38.0)]


@pytest.mark.parametrize(
    ("vanishes", "ending"), [(False, (CancelReason.STALLED, 60.0)), (True, (CancelReason.DISCONNECT, 60.0))]
)
def test_data_that_are_answered_and_not_taken_are_no_silence(rig: Rig, vanishes: bool, ending: Any) -> None:
    """A window that shrinks below what is in flight: the kernel tries again at growing intervals."""
    watch = rig.watch(client_timeout=20.0, reader_stall=60.0)
    rig.n_in_flight, rig.unsent, rig.buffered = 1, 100, 100
    watch.bytes_wait()
    for tries in range(9):
        rig.clock.pass_until(0.2 * (2**tries - 1))
        rig.sent_at = rig.now
        if not (vanishes and rig.now > 50.0):
            rig.heard_at = rig.now
    assert rig.gone_by(100.0) == [ending]


def test_a_closed_window_is_no_silence_and_counts_from_when_it_opens(rig: Rig) -> None:
    rig.watch(client_timeout=20.0, reader_stall=0.0)
    rig.unsent = 100
    assert rig.gone_by(1_000.0) == []
    rig.unsent, rig.heard_at = 0, 1_000.0
    assert rig.gone_by(2_000.0) == [(CancelReason.DISCONNECT, 1_020.0)]


def test_where_the_system_does_not_tell_only_keepalive_ends_a_silence(rig: Rig) -> None:
    rig.tells = False
    rig.watch(client_timeout=20.0)
    rig.clock.pass_until(1_000.0)
    assert (rig.gone, rig.clock.n_calls) == ([], 0)


# -- stalls -----------------------------------------------------------------------------------------------------------


def test_time_counts_from_when_bytes_wait_not_from_when_some_were_sent_last(rig: Rig) -> None:
    watch = rig.watch(client_timeout=0.0, reader_stall=60.0)
    rig.clock.pass_until(500.0)
    watch.bytes_wait()
    assert rig.gone_by(559.0) == []
    assert rig.gone_by(560.0) == [(CancelReason.STALLED, 560.0)]


def test_a_reader_that_takes_a_byte_now_and_then_has_not_stalled(rig: Rig) -> None:
    rig.watch(client_timeout=0.0, reader_stall=60.0).bytes_wait()
    for second in range(50, 1_000, 50):
        rig.clock.pass_until(second)
        rig.acknowledged, rig.sent_at = rig.acknowledged + 1, second
    assert rig.gone == []
    assert rig.clock.n_calls < 40
    assert rig.gone_by(2_000.0) == [(CancelReason.STALLED, 1_010.0)], "60 s after the last byte, not the last look"


def test_a_reader_that_has_taken_everything_has_not_stalled(rig: Rig) -> None:
    watch = rig.watch(client_timeout=0.0, reader_stall=60.0)
    watch.bytes_wait()
    rig.clock.pass_until(59.0)
    watch.none_wait()
    assert rig.gone_by(1_000.0) == []
    watch.bytes_wait()
    assert rig.gone_by(2_000.0) == [(CancelReason.STALLED, 1_060.0)]


def test_a_reader_that_vanishes_in_a_burst_has_vanished(rig: Rig) -> None:
    watch = rig.watch(client_timeout=20.0, reader_stall=60.0)
    rig.n_in_flight, rig.unsent = 3, 100
    watch.bytes_wait()
    rig.clock.pass_until(0.2)
    rig.sent_at = 0.2  # again
    assert rig.gone_by(1_000.0) == [(CancelReason.DISCONNECT, 20.0)]


def test_where_the_system_does_not_tell_what_leaves_the_process_counts(rig: Rig) -> None:
    rig.tells = False
    rig.buffered = 1_000
    rig.watch(client_timeout=0.0, reader_stall=60.0).bytes_wait()
    rig.clock.pass_until(30.0)
    rig.buffered = 999
    assert rig.gone_by(119.0) == []
    rig.clock.pass_until(121.0)
    assert [reason for reason, _ in rig.gone] == [CancelReason.STALLED]


def test_nothing_is_watched_after_the_end(rig: Rig) -> None:
    watch = rig.watch(client_timeout=20.0, reader_stall=60.0)
    watch.bytes_wait()
    for _ in range(2):
        watch.stop()
    watch.bytes_wait()
    assert rig.gone_by(1_000.0) == []


# -- the kernel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client_timeout", [2, 2.5, 3, 20, 254, 600, 32_767])
def test_probes_end_when_the_silence_does(client_timeout: float) -> None:
    idle, n_probes = probing(client_timeout)
    assert client_timeout <= idle + n_probes < client_timeout + 1
    assert 1 <= idle <= 32_767
    assert 1 <= n_probes <= 127


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the names are Linux's")
def test_a_connection_is_probed_and_its_kernel_keeps_little(pair: tuple[socket.socket, socket.socket]) -> None:
    set_socket_options(pair[0], 20.0)
    options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_NOTSENT_LOWAT")
    found = [pair[0].getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
    assert found == [10, 1, 10, UNSENT_BYTES]
    assert pair[0].getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


needs_tcp_info = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="this system does not tell")


@needs_tcp_info
def test_the_kernel_tells_what_the_client_has_taken(pair: tuple[socket.socket, socket.socket]) -> None:
    server, _ = pair
    before = tcp_info(server).acknowledged
    server.send(b"12345")
    until(lambda: tcp_info(server).acknowledged, lambda taken: taken == before + 5)
    assert tcp_info(server).n_in_flight == tcp_info(server).unsent == 0


@needs_tcp_info
def test_the_kernel_tells_of_a_closed_window_and_of_one_that_opens(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    set_socket_options(server, 0.0)
    n_sent = 0

    def fill() -> TcpInfo:
        nonlocal n_sent
        with suppress(BlockingIOError):
            while True:
                n_sent += server.send(b"x" * 1_000)
        return tcp_info(server)

    until(fill, lambda info: info.window_closed)
    taken = tcp_info(server).acknowledged
    while n_sent:
        n_sent -= len(client.recv(n_sent))
    until(lambda: tcp_info(server), lambda info: not info.window_closed and info.acknowledged > taken)


@needs_tcp_info
def test_of_a_connection_that_is_closed_nothing_is_known(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].close()
    assert tcp_info(pair[0]) is None
