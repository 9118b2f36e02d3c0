"""The effects of other settings of a proxy: the reasons for those in ``deploy/``, and for what ``docs/proxies.md``
says.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.proxies.conftest import NGINX_OWN, PING_INTERVAL, MakeProxy
from tests.support.http_process import RawClient, ServerProcess, assert_ends_soon
from tests.support.proxies import HAProxy, Nginx, Proxy

pytestmark = pytest.mark.long

forms = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
DEAF = [(Nginx, {"proxy_ignore_client_abort": "on"}), (HAProxy, {"option abortonclose": None})]
SHORT = 0.4
IMPATIENT = [
    (Nginx, {"proxy_read_timeout": f"{SHORT * 1e3:.0f}ms"}),
    (HAProxy, {"timeout server": f"{SHORT * 1e3:.0f}ms"}),
]


@forms
def test_nginx_with_its_own_settings_passes_on_that_a_client_left(
    run: MakeProxy, server: ServerProcess, occupied: Callable[[], AbstractContextManager[None]], stream: bool
) -> None:
    proxy = run(Nginx, NGINX_OWN)
    with occupied(), RawClient(proxy.port) as client:
        request_id = client.post(stream=stream)
        server.wait_for(request_id, status="waiting")
        assert_ends_soon(server, request_id, client.leave("close"), "waiting")
    with RawClient(proxy.port) as client:
        request_id = client.post(stream=stream)
        server.wait_for(request_id, completion_tokens=lambda n: n > 2)
        assert_ends_soon(server, request_id, client.leave("close"), "decode")


def test_nginx_with_its_own_settings_does_not_hold_back_a_stream(
    run: MakeProxy, occupied: Callable[[], AbstractContextManager[None]]
) -> None:
    """It buffers, unless an answer says X-Accel-Buffering: no."""
    proxy = run(Nginx, NGINX_OWN)
    with occupied(), RawClient(proxy.port) as client:
        client.post(stream=True)
        assert client.answer().readline().startswith(b": waiting, ")


def test_nginx_that_buffers_all_the_same_holds_back_a_page_of_a_stream(run: MakeProxy) -> None:
    with RawClient(run(Nginx, NGINX_OWN | {"proxy_ignore_headers": "X-Accel-Buffering"}).port) as client:
        client.post(stream=True)
        answer = client.answer()
        assert len(answer.read1(100_000)) > 3_000


@pytest.mark.parametrize(("kind", "settings"), DEAF, ids=["nginx", "haproxy"])
def test_a_proxy_that_ignores_its_clients_has_the_answer_computed_to_the_end(
    run: MakeProxy, server: ServerProcess, kind: type[Proxy], settings: dict[str, str | None]
) -> None:
    with RawClient(run(kind, settings).port) as client:
        request_id = client.post(max_tokens=1_500, ignore_eos=True)
        server.wait_for(request_id, completion_tokens=lambda n: n > 2)
        client.leave("reset")
    assert server.wait_for(request_id, status="finished")["completion_tokens"] == 1_500


@pytest.mark.parametrize(("kind", "settings"), IMPATIENT, ids=["nginx", "haproxy"])
def test_a_short_time_out_ends_an_answer_that_comes_whole_and_the_server_computes_no_further(
    run: MakeProxy, server: ServerProcess, kind: type[Proxy], settings: dict[str, str | None]
) -> None:
    with RawClient(run(kind, settings).port) as client:
        request_id = client.post()
        assert client.answer().status == 504
    assert server.wait_for(request_id, status="cancelled")["cancel_reason"] == "disconnect"


@pytest.mark.parametrize(("kind", "settings"), IMPATIENT, ids=["nginx", "haproxy"])
def test_pings_keep_a_stream_alive_that_waits_longer_than_the_time_out(
    run: MakeProxy,
    server: ServerProcess,
    occupied: Callable[[], AbstractContextManager[None]],
    kind: type[Proxy],
    settings: dict[str, str | None],
) -> None:
    with occupied(), RawClient(run(kind, settings).port) as client:
        request_id = client.post(stream=True)
        answer = client.answer()
        n_pings = 0
        while n_pings * PING_INTERVAL < 3 * SHORT:
            n_pings += answer.readline() == b": ping\n"
        assert server.request(request_id)["status"] == "waiting"
