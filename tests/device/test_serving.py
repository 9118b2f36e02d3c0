"""A server with layers on a device: clients leave in the middle of a prompt, and the next one gets its own answer."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.device import n_gpu_layers
from tests.support.http_process import RawClient, ServerProcess, assert_ends_soon, long_prompt

CONTEXT = 4096
N_LEAVERS = 3
PATIENCE = 300.0  # shaders are compiled by the processor

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server(model_file: Path) -> Iterator[ServerProcess]:
    layers = n_gpu_layers(model_file)
    options = ("--model", str(model_file), "--ctx-size", str(CONTEXT), "--parallel", "2", "--kv-unified")
    with ServerProcess(*options, "--gpu-layers", "all" if layers < 0 else str(layers)) as process:
        process.wait_for_log("running on", PATIENCE)
        yield process.started()
        process.signal()
        assert process.wait() == -signal.SIGTERM


def answer(server: ServerProcess, prompt: list[int]) -> dict[str, Any]:
    asked = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return server.http.post("/v1/completions", json=asked, timeout=PATIENCE).raise_for_status().json()


def steps_of(server: ServerProcess, request_id: str) -> list[dict[str, Any]]:
    traced = server.http.get("/v1/steps").json()["data"]
    return [step for step in traced if any(part["request"] == request_id for part in step["sequences"])]


def test_clients_that_leave_in_a_prompt_stop_its_step_and_the_next_gets_its_own_answer(server: ServerProcess) -> None:
    prompt = long_prompt(200)
    expected = answer(server, prompt)["choices"]
    statuses = []
    for number in range(N_LEAVERS):
        with RawClient(server.port) as client:
            request_id = client.post(prompt=long_prompt(CONTEXT - 100 - number))
            server.wait_for(request_id, phase="prefill", prompt_tokens_done=lambda count: count > 0)
            assert_ends_soon(server, request_id, client.leave("reset"), "prefill")
        last, *whole = steps_of(server, request_id)
        assert {step["status"] for step in whole} <= {"ok"}
        statuses.append(last["status"])
        assert answer(server, prompt)["choices"] == expected
    # All but those that left between two steps.
    assert "aborted" in statuses
