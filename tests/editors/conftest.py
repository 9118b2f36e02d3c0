from collections.abc import Iterator

import pytest

from tests.clients.model import serving
from tests.support.http_process import ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Before one editor's user: the newest request of an address supersedes, and an edit goes on until it is left."""
    with serving(tmp_path_factory.mktemp("models"), "--supersede", "client-ip", whole_prompts=True) as process:
        yield process


@pytest.fixture(autouse=True)
def _idle_again(server: ServerProcess) -> Iterator[None]:
    yield
    server.wait_idle()
