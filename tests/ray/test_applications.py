"""Several applications, each under its path."""

from __future__ import annotations

from contextlib import ExitStack

from tests.ray.cluster import RayCluster
from tests.ray.conftest import OTHER
from tests.ray.replica_requests import ask, running


def test_each_has_its_own_model_its_own_errors_and_its_own_page(cluster: RayCluster) -> None:
    assert cluster.http.get(f"{OTHER}/v1/models").json()["data"][0]["id"] == "other"
    assert cluster.http.get("/v1/models").json()["data"][0]["id"] == "stdlib-coder"
    body = {"max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
    assert cluster.http.post(f"{OTHER}/v1/messages", json=body).json()["type"] == "message"
    assert cluster.http.post(f"{OTHER}/v1/messages", json={}).json()["type"] == "error"
    assert cluster.http.get(f"{OTHER}/").status_code == 200
    assert cluster.http.get(f"{OTHER}/openapi.json").status_code == 200


def test_a_name_of_one_means_nothing_in_another(cluster: RayCluster) -> None:
    with ExitStack() as clients:
        _, request_id = ask(clients, cluster.port, supersede="key")
        running(cluster.replicas[0], request_id)
        answer = cluster.http.post(f"{OTHER}/v1/completions", json={"prompt": "a", "max_tokens": 2, "supersede": "key"})
        assert answer.status_code == 200
        assert cluster.http.delete(f"{OTHER}/v1/requests/{request_id}").status_code == 404
        assert cluster.replicas[0].request(request_id)["status"] == "running"
