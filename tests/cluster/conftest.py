"""Real servers behind a real HAProxy. Skipped where that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pyllmcancel.cluster.haproxy import Program
from tests.support.balancer import ADVICE, Balancer, haproxy
from tests.support.http_process import ServerProcess
from tests.support.tiny_models import write_tiny_llama

CONTEXT = 32_768
SIZE = ("--ctx-size", str(CONTEXT), "--parallel", "8", "--kv-unified")


@pytest.fixture(scope="session")
def program() -> Program:
    found = haproxy()
    if found is None:
        pytest.skip(ADVICE)
    return found


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a context so long that nothing ends by itself while a test runs."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "long.gguf", n_ctx_train=CONTEXT)


def started(stack: ExitStack, n: int, model: Path, *options: str) -> list[ServerProcess]:
    """So many servers, one after the other: beside each other they would be slow on a busy machine."""
    return [start(stack, model, *options) for _ in range(n)]


def start(stack: ExitStack, model: Path, *options: str) -> ServerProcess:
    return stack.enter_context(ServerProcess("--model", str(model), *SIZE, *options)).started()


@pytest.fixture(scope="session")
def servers(program: Program, long_model: Path) -> Iterator[list[ServerProcess]]:
    """Three servers."""
    with ExitStack() as stack:
        yield started(stack, 3, long_model)


@pytest.fixture
def balancer(servers: list[ServerProcess], tmp_path: Path) -> Iterator[Balancer]:
    with Balancer(servers, tmp_path) as running:
        yield running
    for server in servers:
        server.wait_idle()
