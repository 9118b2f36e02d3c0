"""The effects of other settings of a proxy: the reasons for those in ``deploy/`` and for ``docs/proxies.md``."""

import pytest

from tests.proxies.conftest import NGINX_OWN, PING_INTERVAL, MakeProxy, Occupied, check_leaving
from tests.support.http_process import RawClient, ServerProcess
from tests.support.proxies import HAProxy, Nginx, Proxy

pytestmark = pytest.mark.long

forms = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
DEAF = [(Nginx, {"proxy_ignore_client_abort": "on"}), (HAProxy, {"option abortonclose": None})]
SHORT = 2.0  # seconds, many pings' on a busy machine too
IMPATIENT = [(Nginx, {"proxy_read_timeout": "2s"}), (HAProxy, {"timeout server": "2s"})]

impatient = pytest.mark.parametrize(("kind", "settings"), IMPATIENT, ids=["nginx", "haproxy"])


@forms
def test_nginx_with_its_own_settings_passes_on_that_a_client_left(
    run: MakeProxy, server: ServerProcess, occupied: Occupied, stream: bool
) -> None:
    proxy = run(Nginx, NGINX_OWN)
    with occupied():
        check_leaving(proxy.port, server, "waiting", stream=stream)
    check_leaving(proxy.port, server, "decode", stream=stream)


def test_nginx_with_its_own_settings_does_not_hold_back_a_stream(run: MakeProxy, occupied: Occupied) -> None:
    """It buffers, unless an answer says X-Accel-Buffering: no."""
    proxy = run(Nginx, NGINX_OWN)
    with occupied(), RawClient(proxy.port) as client:
        client.post(stream=True)
        assert client.answer().readline().startswith(b": waiting, ")


def test_nginx_that_buffers_all_the_same_holds_back_a_page_of_a_stream(run: MakeProxy) -> None:
    with RawClient(run(Nginx, NGINX_OWN | {"proxy_ignore_headers": "X-Accel-Buffering"}).port) as client:
        client.post(stream=True)
        assert len(client.answer().read1(100_000)) > 3_000


@pytest.mark.parametrize(("kind", "settings"), DEAF, ids=["nginx", "haproxy"])
def test_a_proxy_that_ignores_its_clients_has_the_answer_computed_to_the_end(
    run: MakeProxy, server: ServerProcess, kind: type[Proxy], settings: dict[str, str | None]
) -> None:
    with RawClient(run(kind, settings).port) as client:
        request_id = client.post(max_tokens=1_500, ignore_eos=True)
        server.wait_for(request_id, completion_tokens=lambda n: n > 2)
        client.leave("reset")
    assert server.wait_for(request_id, status="finished")["completion_tokens"] == 1_500


@impatient
def test_a_short_time_out_ends_an_answer_that_comes_whole_and_the_server_computes_no_further(
    run: MakeProxy, server: ServerProcess, kind: type[Proxy], settings: dict[str, str | None]
) -> None:
    with RawClient(run(kind, settings).port) as client:
        request_id = client.post()
        assert client.answer().status == 504
    assert server.wait_for(request_id, status="cancelled")["cancel_reason"] == "disconnect"


@impatient
def test_pings_keep_a_stream_alive_that_waits_longer_than_the_time_out(
    run: MakeProxy, server: ServerProcess, occupied: Occupied, kind: type[Proxy], settings: dict[str, str | None]
) -> None:
    with occupied(), RawClient(run(kind, settings).port) as client:
        request_id = client.post(stream=True)
        answer = client.answer()
        n_pings = 0
        while n_pings * PING_INTERVAL < 3 * SHORT:
            line = answer.readline()
            assert line, "the proxy has ended the stream"
            n_pings += line == b": ping\n"
        assert server.request(request_id)["status"] == "waiting"
