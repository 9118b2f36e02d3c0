"""Clients behind a proxy have their own addresses where ``--trusted-proxies`` names it, and else they are one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.proxies.conftest import CONTEXT, installed
from tests.support.http_process import COMPLETIONS, RawClient, ServerProcess, fresh_id, post_bytes
from tests.support.proxies import HAProxy, Nginx, Proxy

pytestmark = pytest.mark.long

ALICE, BOB = "127.0.0.2", "127.0.0.3"  # addresses of this machine too
SIZE = ("--ctx-size", str(CONTEXT), "--parallel", "4", "--kv-unified")
kinds = pytest.mark.parametrize("kind", [Nginx, HAProxy], ids=["nginx", "haproxy"])


@contextmanager
def superseding(model: Path, *options: str) -> Iterator[ServerProcess]:
    """A server whose requests of one address supersede each other."""
    with ServerProcess("--model", str(model), "--supersede", "client-ip", *SIZE, *options) as process:
        yield process.started()


@pytest.fixture(scope="module")
def trusting(long_model: Path) -> Iterator[ServerProcess]:
    """It believes this machine's proxies."""
    with superseding(long_model, "--trusted-proxies", "127.0.0.1") as server:
        yield server


def post(stack: ExitStack, proxy: Proxy, source: str, server: ServerProcess, **headers: str) -> str:
    client = stack.enter_context(RawClient(proxy.port, source=source))
    request_id = fresh_id()
    head, separator, body = post_bytes(request_id, COMPLETIONS).partition(b"\r\n\r\n")
    more = "".join(f"\r\n{name.replace('_', '-')}: {value}" for name, value in headers.items())
    client.socket.sendall(head + more.encode() + separator + body)
    server.wait_for(request_id, completion_tokens=lambda n: n > 0)
    return request_id


@kinds
def test_a_request_supersedes_only_its_own_address(trusting: ServerProcess, kind: type[Proxy], tmp_path: Path) -> None:
    with installed(kind)(trusting.port, tmp_path) as proxy, ExitStack() as clients:
        older = post(clients, proxy, ALICE, trusting)
        neighbour = post(clients, proxy, BOB, trusting)
        newer = post(clients, proxy, ALICE, trusting)
        assert trusting.wait_for(older, status="cancelled")["superseded_by"] == newer
        assert trusting.request(neighbour)["status"] == "running"


@kinds
def test_a_client_cannot_give_itself_an_address(trusting: ServerProcess, kind: type[Proxy], tmp_path: Path) -> None:
    with installed(kind)(trusting.port, tmp_path) as proxy, ExitStack() as clients:
        hers = post(clients, proxy, ALICE, trusting)
        post(clients, proxy, BOB, trusting, X_Forwarded_For=ALICE)
        assert trusting.request(hers)["status"] == "running"


@kinds
def test_without_a_trusted_proxy_all_are_one(long_model: Path, kind: type[Proxy], tmp_path: Path) -> None:
    with ExitStack() as clients:
        distrusting = clients.enter_context(superseding(long_model))
        proxy = clients.enter_context(installed(kind)(distrusting.port, tmp_path))
        older = post(clients, proxy, ALICE, distrusting)
        newer = post(clients, proxy, BOB, distrusting)
        assert distrusting.wait_for(older, status="cancelled")["superseded_by"] == newer
