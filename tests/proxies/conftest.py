"""A server with one slot, and proxies before it. Each proxy's tests are skipped where it is not installed."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_process import RawClient, ServerProcess, assert_ends_soon
from tests.support.proxies import HAProxy, Nginx, Proxy
from tests.support.tiny_models import write_tiny_llama

CONTEXT = 32_768
PING_INTERVAL = 0.1
# The recipe without its lines: nginx's own settings, with which the server's name is that of the upstream.
NGINX_OWN = dict.fromkeys(
    f"proxy_{name}" for name in ("http_version", "set_header", "ignore_client_abort", "read_timeout", "buffering")
)
UPSTREAM = "pyllmcancel"

MakeProxy = Callable[..., Proxy]
Occupied = Callable[[], AbstractContextManager[None]]


@pytest.fixture(scope="session")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a context so long that nothing ends by itself while a test runs."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "long.gguf", n_ctx_train=CONTEXT)


@pytest.fixture(scope="session")
def server(long_model: Path) -> Iterator[ServerProcess]:
    """With one slot."""
    times = ("--sse-ping-interval", str(PING_INTERVAL), "--reader-stall", "3")
    options = ("--ctx-size", str(CONTEXT), "--parallel", "1", "--allowed-hosts", UPSTREAM)
    with ServerProcess("--model", str(long_model), *options, *times) as process:
        yield process.started()


@pytest.fixture
def occupied(server: ServerProcess) -> Occupied:
    """While the block runs another client has the slot."""

    @contextmanager
    def occupy() -> Iterator[None]:
        with RawClient(server.port) as occupant:
            request_id = occupant.post()  # whole: a stream that is not read would be paused
            server.wait_for(request_id, completion_tokens=lambda n: n > 0)
            yield
            assert server.request(request_id)["status"] == "running", "another client's leaving ended it"
            occupant.leave("reset")
        server.wait_for(request_id, status="cancelled")

    return occupy


@pytest.fixture(scope="session", params=[Nginx, HAProxy], ids=["nginx", "haproxy"])
def proxy(request: Any, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """Each proxy, set up as in ``deploy/``."""
    kind = installed(request.param)
    with kind(server.port, tmp_path_factory.mktemp(kind.program)) as running:
        yield running


def check_leaving(port: int, server: ServerProcess, phase: str, way: str = "close", **fields: Any) -> None:
    """A client of this port leaves its request in a phase, and the request ends."""
    reached = {"decode": {"completion_tokens": lambda n: n > 2}}.get(phase, {"phase": phase})
    with RawClient(port) as client:
        request_id = client.post(**fields)
        server.wait_for(request_id, **reached)
        assert_ends_soon(server, request_id, client.leave(way), phase)


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path) -> Iterator[MakeProxy]:
    """Run a proxy with other settings than those in ``deploy/``."""
    with ExitStack() as proxies:
        yield lambda kind, settings: proxies.enter_context(installed(kind)(server.port, tmp_path, settings))


def installed(kind: type[Proxy]) -> type[Proxy]:
    if not kind.is_installed():
        pytest.skip(f"{kind.program.upper()} WAS NOT TRIED: it is not installed ({kind.advice})")
    return kind
