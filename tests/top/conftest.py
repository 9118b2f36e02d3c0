"""Fixtures of the terminal view's tests: the scripted server's every byte is the test's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.scripted_server import ScriptedServer
from tests.support.tiny_models import write_tiny_llama


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its context is so long that nothing ends by itself while a test runs."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "long.gguf", n_ctx_train=100_000)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer.open() as opened:
        yield opened
