"""Attackers, in a process of their own: what they cost to make is not to be measured."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bench.hostile.bodies import BODIES, PROMPTS_OF_LEAVERS

# Their own address, as another machine's would be: limits are per address.
ATTACKER = ("127.0.0.2", 0)
N_LEAVERS = 7
N_SLOW = 400
HALF_HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
HALF_BODY = HALF_HEAD + b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
SLOW = {"idle connections": b"", "half-sent headers": HALF_HEAD, "half-sent bodies": HALF_BODY}
NAMES = (*BODIES, *PROMPTS_OF_LEAVERS, *SLOW)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=120, source_address=ATTACKER)


def send_and_read(port: int, request: bytes) -> None:
    with connect(port) as connection, suppress(OSError):
        connection.sendall(request)
        while connection.recv(1 << 16):
            pass


def repeat_body(port: int, name: str, began: Callable[[], object]) -> None:
    request = BODIES[name]()
    began()
    while True:
        send_and_read(port, request)


def leave_with_prompts(port: int, name: str, began: Callable[[], object]) -> None:
    request = PROMPTS_OF_LEAVERS[name]()
    connections = [connect(port) for _ in range(N_LEAVERS)]
    for connection in connections:
        with suppress(OSError):
            connection.sendall(request)
    for connection in connections:
        connection.close()
    began()
    time.sleep(600)


def hold_slowly(port: int, name: str, began: Callable[[], object]) -> None:
    """Keep many connections that bring nothing, or a byte now and then; a closed one is opened again."""
    held: list[socket.socket] = []
    while True:
        for connection in held[:]:
            connection.setblocking(False)
            with suppress(BlockingIOError):
                try:
                    closed = connection.recv(1 << 12) == b""
                except ConnectionError:
                    closed = True
                if closed:
                    held.remove(connection)
                    connection.close()
        while len(held) < N_SLOW:
            try:
                connection = connect(port)
                connection.sendall(SLOW[name])
            except OSError:
                break
            held.append(connection)
        began()
        time.sleep(0.25)


def run(port: int, name: str, began: Callable[[], object]) -> None:
    with suppress(KeyboardInterrupt, OSError):
        attack = repeat_body if name in BODIES else leave_with_prompts if name in PROMPTS_OF_LEAVERS else hold_slowly
        attack(port, name, began)


@contextmanager
def attack(port: int, name: str) -> Iterator[None]:
    """Attack while the block runs; it begins when the first body is ready to be sent, or the connections are there."""
    spawning = multiprocessing.get_context("spawn")
    began = spawning.Event()
    process = spawning.Process(target=run, args=(port, name, began.set), daemon=True)
    process.start()
    began.wait(120)
    try:
        yield
    finally:
        process.terminate()
        process.join()
