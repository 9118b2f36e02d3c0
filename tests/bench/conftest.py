"""Fixtures of the load generator's tests."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from pyllmcancel.bench.client import Client, Target
from pyllmcancel.bench.server_truth import watch_until_quiet
from tests.support.scripted_server import ScriptedServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A server whose every byte is the test's."""
    async with ScriptedServer.open() as opened:
        yield opened


@pytest.fixture
async def make_client(server: ScriptedServer) -> AsyncIterator[Callable[..., Client]]:
    """Makes clients of the scripted server."""
    yield lambda **changed: Client(Target(**({"url": server.url} | changed)))
    # Transports are closed in the next turn of the event loop.
    await asyncio.sleep(0)


@pytest.fixture
def sleeper() -> Iterator[int]:
    """A process that does nothing."""
    with subprocess.Popen(["sleep", "60"]) as process:
        watch_until_quiet(process.pid, time.monotonic())  # until it has started
        yield process.pid
        process.kill()
