from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.model import serving
from tests.support.http_process import ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("models")) as process:
        yield process
