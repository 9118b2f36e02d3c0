"""Two models on Ray, one with two workers, the other with one to three. Skipped where Ray is not installed."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from typing import Any

import pytest

from tests.ray.cluster import MISSING, SECONDS, RayCluster, is_missing
from tests.support.http_process import RawClient, until

PAIR, GROWING = "pair", "growing"
MODELS: dict[str, dict[str, Any]] = {
    PAIR: {"model": None, "parallel": 8, "ctx_size": 16_384, "reader_stall": 0},
    GROWING: {"model": None, "parallel": 2, "ctx_size": 4_096, "reader_stall": 0},
}
SCALING = {
    "min_replicas": 1,
    "max_replicas": 3,
    "target_ongoing_requests": 2,
    "upscale_delay_s": 1,
    "downscale_delay_s": 3,
    "metrics_interval_s": 1,
    "look_back_period_s": 4,
}
# More than the buffers of a client that does not read: it lives until somebody ends it.
LONG: dict[str, Any] = {"max_tokens": 1_900, "ignore_eos": True, "stream": True, "n": 8}
pytestmark = [pytest.mark.timeout(600), pytest.mark.long]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    if is_missing():
        pytest.skip(MISSING)
    options: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0.1}}
    settings = {PAIR: {"num_replicas": 2, **options}, GROWING: {"autoscaling_config": SCALING, **options}}
    with RayCluster(MODELS, settings) as running:
        running.started()
        yield running


def complete(cluster: RayCluster, model: str, **fields: str) -> str:
    """Have a request answered; the name of the worker that did."""
    body = {"model": model, "prompt": "def ", "max_tokens": 2} | fields
    answer = cluster.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-served-by"]


def begin(cluster: RayCluster, clients: ExitStack, model: str, **fields: str) -> tuple[RawClient, str, str]:
    """Begin a stream; its client, its id, and the worker that computes it."""
    client = clients.enter_context(RawClient(cluster.port, receive_buffer=4_096))
    request_id = client.post(model=model, **LONG, **fields)
    client.socket.recv(1, socket.MSG_PEEK)
    return client, request_id, cluster.request(request_id)["replica"]


def on_each(cluster: RayCluster, clients: ExitStack, workers: list[str]) -> list[tuple[RawClient, str]]:
    """Begin a stream on each worker of the pair; their clients and ids."""
    streams: dict[str, tuple[RawClient, str]] = {}
    while {*streams} != {*workers}:
        client, request_id, name = begin(cluster, clients, PAIR)
        streams[name] = client, request_id
    return [*streams.values()]


def content_of(client: RawClient) -> bytes:
    """Return the client's whole answer; nothing if it broke off."""
    with suppress(HTTPException, ConnectionError):
        return client.answer().read().rstrip()
    return b""


def test_each_model_is_served_by_its_workers(cluster: RayCluster) -> None:
    assert {one["id"] for one in cluster.http.get("/v1/models").json()["data"]} == {PAIR, GROWING}
    for model in (PAIR, GROWING):
        assert {complete(cluster, model) for _ in range(8)} == {*cluster.workers(model)}


def test_a_newer_request_supersedes_one_of_another_worker(cluster: RayCluster) -> None:
    with ExitStack() as clients:
        _, older, _ = begin(cluster, clients, GROWING, supersede="key")
        complete(cluster, PAIR, supersede="key")
        cluster.wait_for(older, status="cancelled", cancel_reason="superseded")


def test_answers_of_a_worker_that_is_killed_go_on_elsewhere_and_it_comes_back(cluster: RayCluster) -> None:
    before = cluster.workers(PAIR)
    with ExitStack() as clients:
        streams = on_each(cluster, clients, before)
        cluster.kill(before[0].removeprefix(f"{PAIR}-"))
        for client, request_id in streams:
            assert content_of(client).endswith(b"[DONE]")
            assert cluster.request(request_id)["finish_reason"] == "length"
    after = cluster.wait_for_workers(PAIR, lambda names: len({*names} - {before[0]}) == 2)
    assert before[1] in after
    assert {complete(cluster, PAIR) for _ in range(8)} == {*after}
    cluster.wait_idle()


def test_a_front_that_is_killed_comes_back_to_the_same_workers(cluster: RayCluster) -> None:
    before = {model: {*cluster.workers(model)} for model in (PAIR, GROWING)}
    with ExitStack() as clients:
        client, _, _ = begin(cluster, clients, PAIR)
        cluster.kill("::front#")
        assert not content_of(client).endswith(b"[DONE]")
    for model, names in before.items():
        cluster.wait_for_workers(model, lambda found, names=names: {*found} == names)
        assert complete(cluster, model) in names


def test_workers_come_and_go_with_the_load(cluster: RayCluster) -> None:
    assert len(cluster.workers(GROWING)) == 1
    with ExitStack() as clients:
        for _ in range(12):
            clients.enter_context(RawClient(cluster.port)).post(model=GROWING, **LONG)
        names = cluster.wait_for_workers(GROWING, lambda names: len(names) == 3)
    cluster.wait_idle()
    assert {*cluster.wait_for_workers(GROWING, lambda names: len(names) == 1)} < {*names}
    complete(cluster, GROWING)


def test_new_options_reach_one_worker_after_the_other_and_cut_nothing(cluster: RayCluster) -> None:
    before = cluster.workers(PAIR)
    with ExitStack() as clients:
        streams = on_each(cluster, clients, before)
        cluster.deploy(MODELS | {PAIR: MODELS[PAIR] | {"parallel": 7}})
        cluster.wait_for_workers(PAIR, lambda names: len({*names} - {*before}) == 2)
        for client, _ in streams:
            assert content_of(client).endswith(b"[DONE]")


def test_an_option_that_is_wrong_is_reported_and_the_others_go_on(cluster: RayCluster) -> None:
    cluster.deploy(MODELS | {GROWING: {"ctx_siz": 1}})
    told = until(lambda: cluster.status(GROWING), lambda one: one["status"] in ("DEPLOY_FAILED", "UNHEALTHY"), SECONDS)
    assert "did you mean --ctx-size?" in str(told["message"]) + str(told["deployments"])
    complete(cluster, PAIR)


def test_nothing_is_left_at_the_end(cluster: RayCluster) -> None:
    assert len(cluster.pids()) > 5
    cluster.interrupt()
    assert cluster.pids() == []
