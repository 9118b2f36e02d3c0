"""LiteLLM, set up as in ``deploy/``, and without what is there. It is looked for in PATH, or in LITELLM.

Not installed by ``.ci/run``: its hundred packages want an environment of their own.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.proxies.conftest import Occupied, installed
from tests.support.http_process import CHAT, COMPLETIONS, RawClient, ServerProcess, fresh_id
from tests.support.proxies import HAProxy, LiteLLM

pytestmark = pytest.mark.long

paths = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


@pytest.fixture(scope="module")
def litellm(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteLLM]:
    installed(LiteLLM)
    with LiteLLM(server.port, tmp_path_factory.mktemp("litellm")) as running:
        yield running


@pytest.fixture(scope="module")
def inattentive(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteLLM]:
    """As it is by default: it does not look whether its clients are there."""
    installed(LiteLLM)
    folder = tmp_path_factory.mktemp("inattentive")
    with LiteLLM(server.port, folder, {"cancel_on_disconnect": None}) as running:
        yield running


@pytest.fixture(scope="module")
def behind_another(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteLLM]:
    """With a proxy between it and the server that keeps connections open."""
    installed(HAProxy)
    installed(LiteLLM)
    deaf = HAProxy(server.port, tmp_path_factory.mktemp("deaf"), {"option abortonclose": None})
    with deaf, LiteLLM(deaf.port, tmp_path_factory.mktemp("behind"), direct=server.port) as running:
        yield running


def post(client: RawClient, path: str, **fields: Any) -> str:
    """Send a request to LiteLLM; its id there, which the callback makes its id at the server."""
    call_id = fresh_id()
    asked = {"messages": [{"role": "user", "content": "hello"}]} if path == CHAT else {"prompt": "hello"}
    body = json.dumps({"model": "stdlib-coder", "max_tokens": 30_000} | asked | fields).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {LiteLLM.key}\r\nx-litellm-call-id: {call_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    client.socket.sendall(head.encode() + body)
    return call_id


def left(proxy: LiteLLM, server: ServerProcess, path: str, status: str = "cancelled", **fields: Any) -> dict[str, Any]:
    """Leave a request in its answer; how it ends."""
    with RawClient(proxy.port) as client:
        request_id = post(client, path, **fields)
        server.wait_for(request_id, completion_tokens=lambda n: n > 2)
        client.leave("close")
    return server.wait_for(request_id, status=status)


def test_an_answer_comes_whole(litellm: LiteLLM, server: ServerProcess) -> None:
    with RawClient(litellm.port) as client:
        request_id = post(client, CHAT, max_tokens=5)
        assert client.answer().status == 200
    assert server.request(request_id)["status"] == "finished"


@paths
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_may_leave_the_queue(
    litellm: LiteLLM, server: ServerProcess, occupied: Occupied, path: str, stream: bool
) -> None:
    with occupied(), RawClient(litellm.port) as client:
        request_id = post(client, path, stream=stream)
        server.wait_for(request_id, status="waiting")
        client.leave("close")
        assert server.wait_for(request_id, status="cancelled")["phase"] == "waiting"


@paths
def test_a_client_may_leave_its_whole_answer(litellm: LiteLLM, server: ServerProcess, path: str) -> None:
    assert left(litellm, server, path)["phase"] == "decode"


@paths
def test_by_default_leaving_a_whole_answer_is_not_seen(inattentive: LiteLLM, server: ServerProcess, path: str) -> None:
    seen = left(inattentive, server, path, "finished", max_tokens=1_500, ignore_eos=True)
    assert seen["completion_tokens"] == 1_500


@paths
def test_the_callback_cancels_behind_a_deaf_proxy(behind_another: LiteLLM, server: ServerProcess, path: str) -> None:
    assert left(behind_another, server, path)["cancel_reason"] == "explicit"
