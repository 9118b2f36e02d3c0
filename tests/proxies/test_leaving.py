"""A client's leaving comes through a proxy that is set up as in ``deploy/``: in every phase, streaming and not."""

import pytest

from tests.proxies.conftest import Occupied, check_leaving
from tests.support.http_process import CHAT, COMPLETIONS, WAYS_TO_LEAVE, RawClient, ServerProcess, events, long_prompt
from tests.support.marks import mostly_long
from tests.support.proxies import Proxy

ways = pytest.mark.parametrize("way", WAYS_TO_LEAVE)
forms = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.mark.long
@ways
@forms
def test_in_the_queue(proxy: Proxy, server: ServerProcess, occupied: Occupied, stream: bool, way: str) -> None:
    with occupied():
        check_leaving(proxy.port, server, "waiting", way, stream=stream)


@pytest.mark.long
@ways
@forms
def test_in_prefill(proxy: Proxy, server: ServerProcess, stream: bool, way: str) -> None:
    # Of a length that no other test's has, so that it shares no beginning with what is cached.
    prompt = long_prompt(30_000 + 7 * WAYS_TO_LEAVE.index(way) + 3 * stream + len(proxy.program))
    check_leaving(proxy.port, server, "prefill", way, stream=stream, prompt=prompt)


@pytest.mark.parametrize("way", mostly_long(WAYS_TO_LEAVE, "close"))
@pytest.mark.parametrize("stream", mostly_long([False, True], True), ids=["whole", "stream"])
def test_in_decode(proxy: Proxy, server: ServerProcess, stream: bool, way: str) -> None:
    check_leaving(proxy.port, server, "decode", way, stream=stream)


@pytest.mark.long
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_answers_come_whole(proxy: Proxy, server: ServerProcess, path: str) -> None:
    with RawClient(proxy.port) as client:
        request_id = client.post(path, max_tokens=5, ignore_eos=True)
        answer = client.answer()
        assert (answer.status, answer.headers["x-request-id"]) == (200, request_id)
        answer.read()
        client.post(path, max_tokens=5, ignore_eos=True, stream=True)
        assert events(client.answer())[-1] == "[DONE]"


@pytest.mark.long
def test_a_stream_is_not_held_back_not_even_the_pings_of_one_that_waits(proxy: Proxy, occupied: Occupied) -> None:
    with occupied(), RawClient(proxy.port) as client:
        client.post(stream=True)
        # A buffer of 4 KiB would need 450 of them.
        assert client.answer().readline().startswith(b": waiting, ")


@pytest.mark.long
def test_a_client_that_does_not_read_is_seen_behind_the_proxy(proxy: Proxy, server: ServerProcess) -> None:
    with RawClient(proxy.port, receive_buffer=4_096) as client:
        request_id = client.post(stream=True, ignore_eos=True)
        assert server.wait_for(request_id, status="cancelled")["cancel_reason"] == "stalled"
