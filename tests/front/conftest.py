"""The router that most tests of the front need."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.front.world import RouterWorld, open_router


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[RouterWorld]:
    """A router of two models, ``a`` and ``b``, of which none is loaded."""
    async with open_router(tmp_path, "a", "b") as world:
        yield world
