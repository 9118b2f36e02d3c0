"""Types on one server after the other."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx

from bench.peers import LLAMA_SERVER, OURS, Peer, Settings
from bench.peers.running import RunningPeer, free_port, running
from bench.typing_picture.times import Key, Typing
from pyllmcancel.sse import EventDecoder

TYPED = "def area"
SECONDS_BETWEEN, N_TOKENS = 0.35, 24
THREADS, CELLS = 2, 4096
LOG_SECONDS = 5.0  # for llama-server's log to be complete
# Some 500 tokens. What is typed comes before them, as when an editor puts its newest context first: no key's prompt
# begins as another's. Or it comes last: then what is computed for one key serves the next.
FILE = "\n".join(
    f"def total_of_row_{n}(rows, weights, bias):\n    return sum(w * x for w, x in zip(weights, rows[{n}])) + bias\n"
    for n in range(12)
)
LAUNCHED = re.compile(r"task (?P<task>\d+) \| processing task")
RELEASED = re.compile(r"task (?P<task>\d+) \| stop processing: n_tokens")
CANCELLED = re.compile(r"cancel task, id_task = (?P<task>\d+)")

Reader = Callable[[RunningPeer, list[Key], float], Awaitable[None]]


def measured(model: Path, *, typed_last: bool) -> list[Typing]:
    return [
        typed_on(LLAMA_SERVER, model, from_log, typed_last=typed_last),
        typed_on(OURS, model, from_requests, typed_last=typed_last),
    ]


def typed_on(peer: Peer, model: Path, read_times: Reader, *, typed_last: bool) -> Typing:
    settings = Settings(model=model, port=free_port(), threads=THREADS, parallel=1, ctx_size=CELLS)
    with running(peer, settings) as server:
        keys = asyncio.run(typed(peer, server, read_times, prompts(typed_last=typed_last)))
    return Typing(peer.name, peer.version(), keys)


def prompts(*, typed_last: bool) -> list[str]:
    """One for each key."""
    lines = [f"# {TYPED[: number + 1]}" for number in range(len(TYPED))]
    return [f"{FILE}{line}" if typed_last else f"{line}\n{FILE}" for line in lines]


async def typed(peer: Peer, server: RunningPeer, read_times: Reader, prompts: list[str]) -> list[Key]:
    supersede = dict.fromkeys(peer.supersede_headers[:1], "typing")
    async with httpx.AsyncClient(base_url=server.url, timeout=None) as http:
        await ask(http, "import os", Key(0.0), {}, 0.0)
        began = time.monotonic()
        keys = await all_keys(http, supersede, began, prompts)
        await read_times(server, keys, began)
    return keys


async def all_keys(http: httpx.AsyncClient, headers: dict[str, str], began: float, prompts: list[str]) -> list[Key]:
    """Press them; returns when the last one's answer is complete."""
    keys: list[Key] = []
    older: asyncio.Task[None] | None = None
    for number, prompt in enumerate(prompts):
        await asyncio.sleep(began + number * SECONDS_BETWEEN - time.monotonic())
        key = Key(time.monotonic() - began)
        named = headers | {"X-Request-Id": f"key-{number}"}
        newer = asyncio.create_task(ask(http, prompt, key, named, began))
        await asyncio.sleep(0)
        if older is not None and older.cancel():
            keys[-1].left = time.monotonic() - began
        keys.append(key)
        older = newer
    assert older is not None
    await older
    return keys


async def ask(http: httpx.AsyncClient, prompt: str, key: Key, headers: dict[str, str], began: float) -> None:
    body = {"prompt": prompt, "max_tokens": N_TOKENS, "temperature": 0, "stream": True, "ignore_eos": True}
    events = EventDecoder()
    with suppress(httpx.RemoteProtocolError):  # a superseded stream may end before this client has left it
        async with http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            async for piece in answer.aiter_bytes():
                for event in events.feed(piece):
                    if key.first_token is None and event.data.startswith("{") and "choices" in json.loads(event.data):
                        key.first_token = time.monotonic() - began


async def from_requests(server: RunningPeer, keys: list[Key], began: float) -> None:
    """From what this server says of each request."""
    async with httpx.AsyncClient(base_url=server.url) as http:
        for number, key in enumerate(keys):
            times = (await http.get(f"/v1/requests/key-{number}")).raise_for_status().json()["times"]
            if times["admitted"] is not None:
                key.began, key.ended = times["admitted"] - began, times["ended"] - began


async def from_log(server: RunningPeer, keys: list[Key], began: float) -> None:
    """From llama-server's log. Its tasks are numbered in the order in which they came."""
    launched, released = tasks(server, LAUNCHED, began), tasks(server, RELEASED, began)
    until = time.monotonic() + LOG_SECONDS
    while launched.keys() - released.keys() and time.monotonic() < until:
        await asyncio.sleep(0.05)  # the last line may not have been written yet
        released = tasks(server, RELEASED, began)
    numbers = sorted(launched.keys() | tasks(server, CANCELLED, began).keys())
    if len(numbers) != len(keys):
        raise RuntimeError(f"llama-server told of {len(numbers)} tasks, but {len(keys)} requests were made")
    for number, key in zip(numbers, keys, strict=True):
        if number in launched:
            key.began, key.ended = launched[number], released[number]


def tasks(server: RunningPeer, words: re.Pattern[str], began: float) -> dict[int, float]:
    return {int(match["task"]): at - began for at, match in server.log.matches(words, began)}
