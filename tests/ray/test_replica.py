"""A replica's handling of requests that come through Ray."""

from __future__ import annotations

import os
from contextlib import ExitStack

from tests.ray.cluster import RayCluster
from tests.ray.replica_requests import ask, ended, running
from tests.support.http_process import WAYS_TO_LEAVE, assert_ends_soon


def test_an_answer_has_one_id_which_is_the_requests(cluster: RayCluster) -> None:
    answer = cluster.http.post("/v1/completions", json={"prompt": "def ", "max_tokens": 2})
    (request_id,) = answer.headers.get_list("x-request-id")
    assert cluster.replicas[0].request(request_id)["status"] == "finished"


def test_it_computes_before_other_programs_or_beside_them(cluster: RayCluster) -> None:
    assert {os.getpriority(os.PRIO_PROCESS, replica.find_pid()) for replica in cluster.replicas} == {0}


def test_a_client_that_leaves_is_noticed_though_its_headers_say_not_to(cluster: RayCluster) -> None:
    for way in WAYS_TO_LEAVE[:2]:
        for port in (cluster.port, cluster.replicas[0].port):
            with ExitStack() as clients:
                client, request_id = ask(clients, port, {"X-Request-Disconnect-Disabled": "?1"})
                running(cluster.replicas[0], request_id)
                assert_ends_soon(cluster.replicas[0], request_id, client.leave(way), "decode")


def test_a_client_cannot_make_ray_give_up_its_request_in_rays_own_words(cluster: RayCluster) -> None:
    with ExitStack() as clients:
        _, request_id = ask(clients, cluster.port, {"X-Request-Timeout-Seconds": "0.01"}, max_tokens=300)
        assert ended(cluster.replicas[0], request_id)["status"] == "finished"
