"""Fixtures of the terminal view's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tiny_models import write_tiny_llama
from tests.top.stage import Stage


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its context is so long that nothing ends by itself while a test runs."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "long.gguf", n_ctx_train=100_000)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as opened:
        yield opened
