"""The view of all replicas that one replica shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

from tests.ray.cluster import RayCluster

FEW = {"prompt": "def ", "max_tokens": 2}


def told_by(stream: httpx.Response) -> Iterator[dict[str, Any]]:
    return (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: "))


def test_the_feed_behind_haproxy_tells_what_happens_on_each_replica(cluster: RayCluster) -> None:
    names = {replica.name for replica in cluster.replicas}
    with cluster.http.stream("GET", "/v1/events", timeout=60) as stream:
        seen = told_by(stream)
        waiting = set(names)
        while waiting:
            event = next(seen)
            waiting -= {event["replica"]} if event["type"] == "snapshot" else set()
        ids = {}
        for replica in cluster.replicas:
            answer = replica.http.post("/v1/completions", json=FEW)
            ids[answer.headers["x-request-id"]] = replica.name
        ended = {}
        while len(ended) < len(ids):
            event = next(seen)
            if event["type"] == "ended" and event["request"]["id"] in ids:
                ended[event["request"]["id"]] = event["replica"]
    assert ended == ids


def test_the_feed_of_one_replica_can_be_read_at_another(cluster: RayCluster) -> None:
    here, there = cluster.replicas
    with here.http.stream("GET", "/v1/events", params={"replica": there.name}, timeout=60) as stream:
        seen = told_by(stream)
        assert next(event for event in seen if event["type"] == "snapshot")["replica"] == there.name
        here.http.post("/v1/completions", json=FEW)
        there.http.post("/v1/completions", json=FEW)
        assert next(event for event in seen if event["type"] == "ended")["replica"] == there.name


def test_a_response_is_found_from_another_replica_and_gone_on_from(cluster: RayCluster) -> None:
    here, there = cluster.replicas
    made = here.http.post("/v1/responses", json={"input": "hello", "max_output_tokens": 4}).json()
    assert there.http.get(f"/v1/responses/{made['id']}").json()["output"] == made["output"]
    more = {"input": "and", "max_output_tokens": 4, "previous_response_id": made["id"]}
    answer = there.http.post("/v1/responses", json=more)
    assert (answer.status_code, answer.headers["x-served-by"]) == (200, there.name)
