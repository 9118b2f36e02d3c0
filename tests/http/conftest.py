"""Fixtures of the HTTP tests."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.http_process import ServerProcess
from tests.support.http_world import World, open_world
from tests.support.tiny_models import write_tiny_llama

CONTEXT = 32_768


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Run the coroutine tests of every module here."""
    if isinstance(collector, pytest.Module):
        collector.add_marker("anyio")


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a context so long that nothing ends by itself while a test runs."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "long.gguf", n_ctx_train=CONTEXT)


@pytest.fixture(scope="session")
def server(long_model: Path) -> Iterator[ServerProcess]:
    """A server that tests share; with two slots, so that a neighbour fits beside each."""
    options = ("--model", str(long_model), "--ctx-size", str(CONTEXT), "--parallel", "2", "--kv-unified")
    with ServerProcess(*options) as process:
        yield process.started()
        process.signal()
        assert process.wait() == -signal.SIGTERM


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server over the fake engine, as it is without options; it is checked for leaks at the end."""
    async with open_world() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _idle_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test nothing is left in the server that it used."""
    yield
    if "server" in request.fixturenames:
        request.getfixturevalue("server").wait_idle()
