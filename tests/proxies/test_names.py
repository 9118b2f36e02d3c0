"""The name that a proxy must send for the server, and the option that allows it, as ``docs/proxies.md`` says."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.proxies.conftest import CONTEXT, NGINX_OWN, MakeProxy, installed
from tests.support.http_process import ServerProcess
from tests.support.proxies import HAProxy, Nginx, Proxy

OWN_NAME = NGINX_OWN | {"proxy_set_header": "X-Forwarded-Host $http_host"}
kinds = pytest.mark.parametrize("kind", [Nginx, HAProxy], ids=["nginx", "haproxy"])


@pytest.fixture(scope="module")
def trusting(long_model: Path) -> Iterator[ServerProcess]:
    """It believes this machine's proxies, and knows nginx's upstream and the proxy by their names."""
    names = ("--trusted-proxies", "127.0.0.1", "--allowed-hosts", "pyllmcancel,chat.example")
    with ServerProcess("--model", str(long_model), "--ctx-size", str(CONTEXT), *names) as server:
        yield server.started()


def ask(proxy: Proxy, host: str = "", *, page: bool = False) -> tuple[int, str | None]:
    """The status and the code of what this name's own page, or no page, asks for through the proxy."""
    host = host or f"127.0.0.1:{proxy.port}"
    headers = {"Host": host} | ({"Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"} if page else {})
    answer = httpx.post(
        f"http://127.0.0.1:{proxy.port}/v1/requests/cancel", json={"session": "s"}, headers=headers, timeout=60
    )
    error: dict[str, Any] = answer.json().get("error", {})
    return answer.status_code, error.get("code")


def test_nginx_without_a_line_for_host_sends_the_name_of_its_upstream(run: MakeProxy) -> None:
    """The server of these tests is allowed this name."""
    assert ask(run(Nginx, NGINX_OWN)) == (200, None)


def test_a_name_that_a_proxy_sends_and_the_server_does_not_know_is_refused_with_the_option(run: MakeProxy) -> None:
    proxy = run(Nginx, NGINX_OWN | {"proxy_set_header": "Host backend.internal"})
    answer = httpx.get(f"http://127.0.0.1:{proxy.port}/v1/models", timeout=60)
    assert answer.status_code == 421
    assert "--allowed-hosts backend.internal" in answer.json()["error"]["message"]


def test_behind_the_name_of_an_upstream_pages_are_those_of_others(run: MakeProxy) -> None:
    assert ask(run(Nginx, NGINX_OWN), page=True) == (403, "foreign_origin")


def test_with_a_trusted_forwarded_name_its_pages_are_the_servers_own(trusting: ServerProcess, tmp_path: Path) -> None:
    with installed(Nginx)(trusting.port, tmp_path, OWN_NAME) as proxy:
        assert ask(proxy, page=True) == (200, None)
        assert ask(proxy, "chat.example", page=True) == (200, None)
        assert ask(proxy, "evil.example", page=True) == (421, "unknown_host")


@kinds
def test_with_the_recipe_the_server_must_know_the_name_that_clients_ask_for(
    run: MakeProxy, trusting: ServerProcess, kind: type[Proxy], tmp_path: Path
) -> None:
    assert ask(run(kind, {}), "chat.example", page=True) == (421, "unknown_host")
    (tmp_path / "trusting").mkdir()
    with installed(kind)(trusting.port, tmp_path / "trusting") as proxy:
        assert ask(proxy, "chat.example", page=True) == (200, None)


def test_nginxs_host_variable_has_no_port_and_its_pages_are_refused(run: MakeProxy) -> None:
    proxy = run(Nginx, NGINX_OWN | {"proxy_set_header": "Host $host"})
    assert ask(proxy) == (200, None)
    assert ask(proxy, page=True) == (403, "foreign_origin")
