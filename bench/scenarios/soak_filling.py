"""The stores of servers are full before the servers' memory is watched: a gain after that is a leak.

Cells take memory when they are first written, and the last tens of thousands of events, sessions and keys are kept. In
hours at half of a core these fill slowly, so that their memory would look like a leak.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

from bench.scenarios.harness import Server
from bench.scenarios.storm.wire import ask, request_bytes

LEFT = 8  # cells of a slot that a prompt leaves for its answer
HOLD, HOLD_EVERY = 60, 100  # seconds, and requests
# A request that is cancelled on arrival makes three events: added, cancelled, ended. A server keeps 20,000 events,
# and up to a tenth more: the soak itself makes the last ones of these within its first hour. Shorter lists are full at
# once, such as the 1,024 sessions of the server, and the 500 of the page.
N_HELD = 5_000


async def fill_cells(server: Server, slots: int) -> None:
    """Have all cells of a server that generates written, by as many requests at once as it has slots."""
    chance = random.Random(slots)
    prompts = [server.prompt(chance, server.n_ctx - LEFT) for _ in range(slots)]
    port = port_of(server)

    def write(prompt: list[int]) -> None:
        reply = ask(port, "/v1/completions", {"prompt": prompt, "max_tokens": LEFT, "ignore_eos": True})
        if not reply.complete:
            raise RuntimeError(f"cells were not filled: {reply.status} {reply.payloads}")

    with ThreadPoolExecutor(slots) as pool:
        await asyncio.gather(*(asyncio.get_running_loop().run_in_executor(pool, write, prompt) for prompt in prompts))


async def fill_texts(server: Server) -> None:
    """The same for a server of vectors: one text takes all of its cells."""
    prompt = server.prompt(random.Random(server.n_ctx), server.n_ctx)
    reply = await asyncio.to_thread(ask, port_of(server), "/v1/embeddings", {"input": prompt})
    if not reply.complete:
        raise RuntimeError(f"cells were not filled: {reply.status} {reply.payloads}")


async def fill_lists(port: int, name: str, n_requests: int = N_HELD) -> None:
    """Have `n_requests` requests cancelled on arrival, each with a session and a supersede key of its own.

    All sessions are children of one that is held: a server holds at most 1,024 names of an owner at once.
    """
    parent = f"filling {name}"

    def fill() -> None:
        for number in range(n_requests):
            if number % HOLD_EVERY == 0:
                ask(port, f"/v1/sessions/{quote(parent)}/cancel?hold={HOLD}", {})
            session = f"{parent} {number}"
            reply = ask(port, "/v1/completions", {"prompt": ".", "max_tokens": 1}, session=session, parent=parent)
            # On a busy machine the hold may have ended.
            if reply.status not in (499, 200):
                raise RuntimeError(f"lists were not filled: {reply.status} {reply.payloads}")

    await asyncio.to_thread(fill)


@contextmanager
def reading(port: int) -> Iterator[None]:
    """Read the feed of all servers: events are kept only while somebody reads, and for some seconds after that."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request_bytes("/v1/events", None))
        begun = b""
        while b"event: snapshot" not in begun:  # after which nothing is missed
            begun += (piece := connection.recv(1 << 16))
            if not piece:
                raise RuntimeError(f"the feed has ended: {begun[:200]!r}")

        def drain() -> None:
            while connection.recv(1 << 16):
                pass

        reader = threading.Thread(target=drain, name="reader of the feed")
        reader.start()
        try:
            yield
        finally:
            connection.shutdown(socket.SHUT_RDWR)
            reader.join()


def port_of(server: Server) -> int:
    return int(server.url.rpartition(":")[2])
