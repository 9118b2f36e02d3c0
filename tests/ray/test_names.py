"""Who cancels whom, over two replicas, whether names come in headers or bodies."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest

from tests.ray.cluster import RayCluster
from tests.ray.replica_requests import ask, ended, running
from tests.support.http_process import until


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("place", ["header", "body"])
def test_a_newer_request_supersedes_the_older_one_on_another_replica(
    cluster: RayCluster, place: str, stream: bool
) -> None:
    for i in range(8):
        here, there = cluster.replicas[i % 2], cluster.replicas[1 - i % 2]
        key = f"key {place} {stream} {i}"
        headers, fields = ({"X-Supersede": key}, {}) if place == "header" else ({}, {"supersede": key})
        with ExitStack() as clients:
            _, older = ask(clients, here.port, headers, stream=stream, **fields)
            assert running(here, older)["replica"] == here.name
            _, newer = ask(clients, there.port, headers, stream=stream, **fields)
            seen = ended(here, older)
            assert (seen["cancel_reason"], seen["superseded_by"]) == ("superseded", newer)
            assert running(there, newer)["replica"] == there.name


def test_of_many_through_haproxy_one_lives(cluster: RayCluster) -> None:
    def listed() -> dict[str, Any]:
        entries = cluster.replicas[0].http.get("/v1/requests").json()["data"]
        return {one["id"]: one for one in entries if one["id"] in ids}

    with ExitStack() as clients:
        ids = {ask(clients, cluster.port, supersede="typing")[1] for _ in range(12)}
        # Which of them came last is for the replicas' clocks to say: each has a connection of its own.
        seen = until(listed, lambda found: sum(one.get("cancel_reason") is not None for one in found.values()) == 11)
        assert [one.get("cancel_reason") for one in seen.values()].count("superseded") == 11
    assert len({one["replica"] for one in seen.values()}) == 2, "all were at one replica"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_cancel_by_id_finds_its_request_24_of_24(cluster: RayCluster, stream: bool) -> None:
    for i in range(12):
        here, there = cluster.replicas[i % 2], cluster.replicas[1 - i % 2]
        with ExitStack() as clients:
            client, request_id = ask(clients, here.port, stream=stream)
            running(here, request_id)
            answer = there.http.delete(f"/v1/requests/{request_id}") if i % 3 else there.cancel(request_id)
            told = answer if isinstance(answer, dict) else answer.json()
            assert (told["outcome"], told["reason"]) == ("cancelled", "explicit")
            assert client.answer().status == (200 if stream else 499)


def test_a_cancel_whose_client_does_not_wait_for_the_answer_is_acted_on(cluster: RayCluster) -> None:
    for i in range(8):
        here, there = cluster.replicas[i % 2], cluster.replicas[1 - i % 2]
        with ExitStack() as clients:
            _, request_id = ask(clients, here.port)
            running(here, request_id)
            with socket.create_connection(("127.0.0.1", there.port)) as hurried:
                head = f"POST /v1/requests/{request_id}/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
                hurried.sendall(head.encode())
            assert ended(here, request_id)["cancel_reason"] == "explicit"


def test_a_cancel_of_a_session_ends_its_family_on_both(cluster: RayCluster) -> None:
    here, there = cluster.replicas
    with ExitStack() as clients:
        parent = ask(clients, here.port, session_id="agent")[1]
        running(here, parent)
        child = ask(clients, there.port, {"X-Session-Id": "sub-agent", "X-Parent-Session-Id": "agent"})[1]
        running(there, child)
        stranger = ask(clients, there.port, session_id="another")[1]
        running(there, stranger)
        told = there.http.post("/v1/sessions/agent/cancel").json()
        assert {one["id"] for one in told["requests"]} == {parent, child}
        assert {ended(here, one)["cancel_reason"] for one in (parent, child)} == {"explicit"}
        assert there.request(stranger)["status"] == "running"


def test_lists_are_of_all_replicas_and_answers_say_who_gives_them(cluster: RayCluster) -> None:
    with ExitStack() as clients:
        ids = {}
        for replica in cluster.replicas:
            ids[ask(clients, replica.port)[1]] = replica.name
        for request_id in ids:
            running(cluster.replicas[0], request_id)
        for replica in cluster.replicas:
            answer = replica.http.get("/v1/requests")
            assert answer.headers["x-served-by"] == replica.name
            listed = {one["id"]: one["replica"] for one in answer.json()["data"] if one["id"] in ids}
            assert listed == ids
