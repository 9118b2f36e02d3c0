"""Names of a request stay on their replica: superseding, cancels by id and by session, families, over three
replicas.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.balancer import Balancer
from tests.support.http_process import RawClient, ServerProcess


def spread(balancer: Balancer, clients: ExitStack) -> None:
    """Have a request without a name on each replica, so that load alone would send the next one anywhere."""
    for _ in range(len(balancer.servers)):
        balancer.running(balancer.post(clients.enter_context(RawClient(balancer.port))))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_the_newest_request_of_a_key_is_the_one_that_lives_30_of_30(balancer: Balancer, stream: bool) -> None:
    seen = set()
    for i in range(15):
        key = {"X-Supersede": f"key {stream} {i}"}
        with RawClient(balancer.port) as older, RawClient(balancer.port) as other, RawClient(balancer.port) as newer:
            first = balancer.post(older, headers=key, stream=stream)
            seen.add(place := balancer.running(first))
            balancer.post(other)
            # A session of its own does not take it elsewhere.
            second = balancer.post(newer, headers={**key, "X-Session-Id": f"session {stream} {i}"}, stream=stream)
            ended = balancer.servers[place].wait_for(first, status="cancelled")
            assert (ended["cancel_reason"], ended["superseded_by"]) == ("superseded", second)
            assert balancer.running(second) == place
    assert len(seen) > 1, "all keys were on one replica"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_cancel_by_id_finds_its_request_24_of_24(balancer: Balancer, stream: bool) -> None:
    seen = set()
    for i in range(12):
        headers = [{}, {"X-Session-Id": f"cancelled {i}"}, {"X-Supersede": f"cancelled {i}"}][i % 3]
        with RawClient(balancer.port) as client:
            request_id = balancer.post(client, headers=headers, stream=stream)
            seen.add(balancer.running(request_id))
            url = f"http://127.0.0.1:{balancer.port}/v1/requests/{request_id}"
            answer = httpx.delete(url, timeout=30) if i % 2 else httpx.post(f"{url}/cancel", timeout=30)
            assert answer.status_code == 200, answer.text
            assert (answer.json()["outcome"], answer.json()["reason"]) == ("cancelled", "explicit")
    assert len(seen) > 1


def test_a_cancel_by_id_takes_no_notice_of_the_names_it_is_sent_with(balancer: Balancer) -> None:
    with ExitStack() as clients:
        spread(balancer, clients)
        wanted = balancer.post(clients.enter_context(RawClient(balancer.port)))
        balancer.running(wanted)
        for i in range(6):  # names that are on all replicas
            names = {"X-Session-Id": f"elsewhere {i}", "X-Supersede": f"elsewhere {i}", "X-Request-Id": f"other-{i}"}
            answer = httpx.get(f"http://127.0.0.1:{balancer.port}/v1/requests/{wanted}", headers=names, timeout=60)
            assert answer.json()["id"] == wanted


def test_a_session_is_cancelled_by_its_name_with_all_of_its_family(balancer: Balancer) -> None:
    for i in range(6):
        with ExitStack() as clients:
            spread(balancer, clients)
            root, child, grandchild = f"root/é {i}", f"child {i}", f"grandchild {i}"
            names = [{"X-Session-Id": root}, {"X-Session-Id": child, "X-Parent-Session-Id": root}]
            names += [{"X-Session-Id": grandchild, "X-Parent-Session-Id": child}, {"X-Session-Id": grandchild}]
            ids = [balancer.post(clients.enter_context(RawClient(balancer.port)), headers=one) for one in names]
            places = [balancer.running(one) for one in ids]
            assert len(set(places)) == 1
            url = httpx.URL(f"http://127.0.0.1:{balancer.port}").join(f"/v1/sessions/{root}/cancel")
            answer = httpx.post(url, timeout=30)
            assert answer.status_code == 200, answer.text
            assert {one["id"] for one in answer.json()["requests"]} == set(ids)


def test_a_parent_that_asks_after_its_child_is_where_the_child_is(balancer: Balancer) -> None:
    for i in range(6):
        with ExitStack() as clients:
            child = {"X-Session-Id": f"early child {i}", "X-Parent-Session-Id": f"late parent {i}"}
            first = balancer.post(clients.enter_context(RawClient(balancer.port)), headers=child)
            place = balancer.running(first)
            spread(balancer, clients)
            late = {"X-Session-Id": f"late parent {i}"}
            second = balancer.post(clients.enter_context(RawClient(balancer.port)), headers=late)
            assert balancer.running(second) == place


def test_a_cancel_that_comes_before_its_request_waits_where_the_request_will_come(balancer: Balancer) -> None:
    for i in range(6):
        held = f"held-{balancer.port}-{i}"
        url = f"http://127.0.0.1:{balancer.port}"
        assert httpx.post(f"{url}/v1/requests/{held}/cancel?hold=30", timeout=60).status_code == 202
        names = {"X-Request-Id": held, "X-Session-Id": f"known {i % 2}"}
        answer = httpx.post(
            f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 30_000}, headers=names, timeout=60
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (499, "explicit")


def test_a_stream_is_taken_up_again_where_it_is(balancer: Balancer) -> None:
    url = f"http://127.0.0.1:{balancer.port}"
    seen = set()
    for i in range(6):
        name = f"talk {balancer.port}/é::{i}"
        headers, fields = {"X-Conversation-Id": name}, {}
        if i % 2:
            headers, fields = {}, {"keep_going": True}
        with RawClient(balancer.port) as client:
            request_id = balancer.post(client, headers=headers, stream=True, **fields)
            seen.add(place := balancer.running(request_id))
        path = quote(request_id if i % 2 else name, safe="")
        address = f"{url}/v1/stream?conv_id={path}" if i % 3 == 0 else f"{url}/v1/stream/{path}"
        with httpx.stream("GET", address, timeout=30) as again:
            assert (again.status_code, again.headers["x-served-by"]) == (200, place)
        assert httpx.delete(address, timeout=30).status_code == 204
        ended = balancer.servers[place].wait_for(request_id, status="cancelled")
        assert ended["cancel_reason"] == "explicit"
    assert len(seen) > 1


def test_every_answer_says_who_gave_it_and_its_id(balancer: Balancer) -> None:
    url = f"http://127.0.0.1:{balancer.port}"
    tiny = {"prompt": "x", "max_tokens": 1}
    made = httpx.post(f"{url}/v1/completions", json=tiny, headers={"X-Served-By": "me"}, timeout=60)
    assert made.headers["x-served-by"] in balancer.servers
    assert made.headers["x-request-id"].startswith("req-")
    given = httpx.post(
        f"{url}/v1/completions", json=tiny, headers={"X-Request-Id": f"mine-{balancer.port}"}, timeout=60
    )
    assert given.headers["x-request-id"] == f"mine-{balancer.port}"


@pytest.mark.parametrize("path", ["/v1/peers", "/v1/%70eers", "/v1/peers?x=1"])
def test_what_servers_say_to_each_other_is_not_passed_on(balancer: Balancer, path: str) -> None:
    with closing(HTTPConnection("127.0.0.1", balancer.port, timeout=30)) as client:
        client.request("POST", path, b"{}", {"Content-Type": "application/json"})
        answer = client.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (404, "not_found")
        assert (answer.headers["X-Served-By"], bool(answer.headers["X-Request-Id"])) == (None, True)


def test_of_two_requests_with_two_names_each_name_stays_where_its_requests_are(balancer: Balancer) -> None:
    """A request goes where its key is; its session, which lives elsewhere, is still found there."""
    places = ("", "")
    tries = iter(range(20))
    while places[0] == places[1]:
        i = next(tries)
        session, key = {"X-Session-Id": f"split {i}"}, {"X-Supersede": f"split key {i}"}
        with ExitStack() as clients:
            first = balancer.post(clients.enter_context(RawClient(balancer.port)), headers=session)
            second = balancer.post(clients.enter_context(RawClient(balancer.port)), headers=key)
            places = balancer.running(first), balancer.running(second)
            if places[0] == places[1]:
                continue
            both = balancer.post(clients.enter_context(RawClient(balancer.port)), headers=session | key)
            assert balancer.running(both) == places[1]
            third = balancer.post(clients.enter_context(RawClient(balancer.port)), headers=session)
            assert balancer.running(third) == places[0]


def test_nobody_without_a_name_waits_while_another_replica_has_a_free_slot(
    servers: list[ServerProcess], tmp_path: Path
) -> None:
    with Balancer(servers[:2], tmp_path, slots=4) as balancer, ExitStack() as clients:
        ids = [balancer.post(clients.enter_context(RawClient(balancer.port)), stream=True) for _ in range(8)]
        assert Counter(map(balancer.place_of, ids)) == {"r1": 4, "r2": 4}
