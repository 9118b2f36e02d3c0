"""Two models of one machine, with all their real processes."""

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.model import write_patient_model
from tests.support.http_process import START_LIMIT, RawClient, ServerProcess, assert_ends_soon, events, fresh_id, until
from tests.support.threads import N_THREADS

pytestmark = pytest.mark.long

PRESET = """
[*]
model = {path}
ctx-size = 32768
spec-type = none
[one]
alias = first
[other]
ctx-size = 65536
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("router")
    preset = folder / "models.ini"
    preset.write_text(PRESET.format(path=write_patient_model(folder / "model.gguf")))
    with ServerProcess("--models-preset", str(preset), "--threads", str(N_THREADS)) as process:
        process.started()
        for model in ("one", "other"):
            process.http.post("/models/load", json={"model": model})
        for model in ("one", "other"):
            until(partial(status_of, process, model), lambda status: status == "loaded", START_LIMIT)
        yield process


def status_of(server: ServerProcess, model: str) -> str:
    return server.http.get(f"/v1/models/{model}").json()["status"]["value"]


def endless(**fields: Any) -> dict[str, Any]:
    """Fields of a request that takes longer than any test."""
    return {"stream": True, "max_tokens": 30_000} | fields


def test_a_client_that_leaves_ends_its_computation_and_no_other(server: ServerProcess) -> None:
    with RawClient(server.port) as client, RawClient(server.port) as neighbour:
        mine = client.post(model="one", **endless())
        other = neighbour.post(model="other", max_tokens=4)
        server.wait_for(mine, completion_tokens=lambda n: n > 0)
        assert_ends_soon(server, mine, client.leave("close"), "decode")
        assert neighbour.answer().status == 200
        assert server.wait_for(other, status="finished")["replica"] == "other"


def test_a_request_that_waits_for_its_model_supersedes_at_once(server: ServerProcess) -> None:
    key = fresh_id()
    with RawClient(server.port) as first, RawClient(server.port) as second:
        older = first.post(model="one", supersede=key, **endless())
        server.wait_for(older, status="running")
        server.http.post("/models/unload", json={"model": "other"})
        newer = second.post(model="other", supersede=key, max_tokens=4)
        cancelled = server.wait_for(older, status="cancelled")
        assert (cancelled["cancel_reason"], cancelled["superseded_by"]) == ("superseded", newer)
        assert second.answer().status == 200
        times = server.wait_for(newer, status="finished")["times"]
        # It arrived in front, and its model accepted it after the load.
        assert times["arrived"] <= cancelled["times"]["cancelled"] < times["admitted"]


def test_llama_servers_metrics_name_the_models(server: ServerProcess) -> None:
    text = server.http.get("/metrics?format=llama-server").text
    assert text.count("# TYPE llamacpp:requests_processing gauge") == 1
    assert 'llamacpp:requests_processing{model="' in text
    assert server.http.get("/metrics?format=other").status_code == 400


def test_metrics_of_all_models_are_one_text(server: ServerProcess) -> None:
    text = server.http.get("/metrics").text
    for model in ("one", "other"):
        assert f'pyllmcancel_requests_total{{model="{model}",outcome="stop"}}' in text
    assert text.count("# TYPE pyllmcancel_requests_total counter") == 1


def test_a_killed_process_comes_back_and_goes_on(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        mine = client.post(model="other", stream=True, max_tokens=3_000)
        server.wait_for(mine, status="running")
        before = server.children()
        (victim,) = [pid for pid in before if b"ctx-size=65536" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(victim, signal.SIGKILL)
        assert status_of(server, "one") == "loaded"
        until(lambda: len(set(server.children()) - set(before)), lambda n: n == 1)
        until(lambda: status_of(server, "other"), lambda status: status == "loaded", START_LIMIT)
        assert events(client.answer())[-1] == "[DONE]"
    server.wait_for(mine, status="finished")


def test_a_second_signal_ends_the_drains_and_the_application_in_order(server: ServerProcess) -> None:
    """The last test of this server."""
    with RawClient(server.port) as client:
        mine = client.post(model="one", **endless())
        server.wait_for(mine, completion_tokens=lambda n: n > 0)
        pids = server.children()
        server.signal(signal.SIGINT)
        server.wait_for_log("ending: the models' processes end first")
        server.signal(signal.SIGINT)
        assert '"code": "shutdown"' in events(client.answer())[-1]
        assert server.wait() == 128 + signal.SIGINT
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert re.search(r"^\d\S+ .*Application shutdown complete", server.log, re.MULTILINE), "the front's own"
