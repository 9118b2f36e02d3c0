"""The client's address: the socket's, unless ``--trusted-proxies`` names the peer."""

from __future__ import annotations

import pytest

from tests.support.http_process import COMPLETIONS, ServerProcess

TINY = {"prompt": "x", "max_tokens": 1}


def key_of(server: ServerProcess, forwarded_for: str) -> str:
    answer = server.http.post(COMPLETIONS, json=TINY, headers={"X-Forwarded-For": forwarded_for})
    assert answer.status_code == 200
    key: str = server.http.get("/v1/requests").json()["data"][0]["supersede"]
    return key


@pytest.mark.parametrize(
    ("proxies", "forwarded_for", "expected"),
    [
        ((), "10.0.0.5", "127.0.0.1"),
        pytest.param(("192.0.2.1",), "10.0.0.5", "127.0.0.1", marks=pytest.mark.long),
        pytest.param(("127.0.0.1",), "10.0.0.5", "10.0.0.5", marks=pytest.mark.long),
        pytest.param(("127.0.0.0/8", "10.0.0.0/24"), "203.0.113.9, 10.0.0.7", "203.0.113.9", marks=pytest.mark.long),
    ],
)
def test_the_address_of_a_client(proxies: tuple[str, ...], forwarded_for: str, expected: str) -> None:
    options = ("--trusted-proxies", ",".join(proxies)) if proxies else ()
    # Two from one address: behind a proxy they are two clients.
    with ServerProcess("--supersede", "client-ip", "--max-connections-per-address", "2", *options) as server:
        server.started()
        assert key_of(server, forwarded_for) == f" client-ip {expected} completion"
