"""Answers that go on elsewhere when their process is killed, stopped or ended: nobody notices, whatever the dialect."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.model import write_patient_model
from tests.support.http_process import START_LIMIT, RawClient, ServerProcess, events, fresh_id, until
from tests.support.marks import mostly_long
from tests.support.media_files import data_url, png
from tests.support.threads import N_THREADS
from tests.support.toy_projectors import write_pair

N_TOKENS = 1_000  # enough for an answer to be live still when its process has been found
SCHEMA = {"type": "object", "properties": {"text": {"type": "string", "minLength": 2000}}, "required": ["text"]}
TOOL = {"type": "function", "function": {"name": "note", "parameters": SCHEMA}}
CHAT = [{"role": "user", "content": "def f("}]
FREE: dict[str, Any] = {"max_tokens": N_TOKENS, "temperature": 1.0, "seed": 3}
# These fields are of one request, or of the moment.
VOLATILE = {"id", "created", "created_at", "completed_at", "item_id", "call_id", "timings", "prompt_tokens_details"}
VOLATILE |= {"input_tokens_details", "cache_read_input_tokens", "input_tokens", "id_slot", "tokens_cached"}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "two choices, with logprobs": ("/v1/completions", {"prompt": "def f(", "n": 2, "logprobs": 3, **FREE}),
    "a seed that was drawn": ("/v1/completions", {"prompt": "def f(", "max_tokens": N_TOKENS, "temperature": 0.0}),
    "a schema": (
        "/v1/chat/completions",
        {
            "messages": CHAT,
            "response_format": {"type": "json_schema", "json_schema": {"name": "note", "schema": SCHEMA}},
            **FREE,
        },
    ),
    "a call": ("/v1/chat/completions", {"messages": CHAT, "tools": [TOOL], "tool_choice": "required", **FREE}),
    "mirostat": ("/completion", {"prompt": "def f(", "n_predict": N_TOKENS, "mirostat": 2, "seed": 5}),
    "messages": ("/v1/messages", {"messages": CHAT, "max_tokens": N_TOKENS, "temperature": 0.0}),
    "responses": ("/v1/responses", {"input": "def f(", "max_output_tokens": N_TOKENS, "temperature": 0.0}),
}


N_CROWD = 5  # a process that ends three times within a minute has failed, and each test of a crowd ends one


@contextmanager
def replicas(model: Path, n: int, *more: str) -> Iterator[ServerProcess]:
    options = (str(model), "--replicas", str(n), "--ctx-size", "32768", "--threads", str(N_THREADS), *more)
    sampling = ("--temp", "0.9", "--top-p", "0.9", "--min-p", "0.02", "--top-k", "50")
    with ServerProcess(*options, *sampling, "--spec-type", "none", "--drain", "0", "--worker-silence", "2") as process:
        process.started()
        yield process


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with replicas(write_patient_model(tmp_path_factory.mktemp("moves") / "stdlib.gguf"), N_CROWD) as process:
        yield process


@pytest.fixture
def crowd(many: ServerProcess) -> ServerProcess:
    """All of them serve, also the one that an earlier test has lost."""
    many.http.post("/models/load", json={"model": "stdlib"})  # one that has failed would rest for half a minute
    all_serve(many)
    return many


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ServerProcess]:
    with replicas(write_patient_model(tmp_path / "stdlib.gguf"), 2) as process:
        all_serve(process)
        yield process


def all_serve(server: ServerProcess) -> None:
    until(lambda: {*server.replicas().values()}, lambda found: found == {"loaded"}, START_LIMIT)


def process_of(server: ServerProcess, replica: str) -> int:
    for pid in server.children():
        if f"\0--replica\0{replica}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise LookupError(replica)


def lose(server: ServerProcess, request_id: str, number: int = signal.SIGKILL) -> tuple[str, int]:
    """Signal the process of a request that has some tokens; return its replica and the process."""
    seen = server.wait_for(request_id, status="running", completion_tokens=lambda n: n > 0)
    pid = process_of(server, seen["replica"])
    os.kill(pid, number)
    return seen["replica"], pid


def ended_elsewhere(server: ServerProcess, request_id: str, replica: str) -> bool:
    seen = server.wait_for(request_id, status="finished")
    return seen["finish_reason"] in ("stop", "length") and seen["replica"] != replica


def post(client: RawClient, path: str, body: dict[str, Any]) -> str:
    name, content = fresh_id(), json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Request-Id: {name}\r\n"
    client.socket.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
    return name


def stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: stable(part) for name, part in value.items() if name not in VOLATILE}
    return [stable(part) for part in value] if isinstance(value, list) else value


def essence(payloads: list[dict[str, Any]]) -> list[Any]:
    """Return what must not differ; the events of several choices come in any order."""
    if any("choices" in one for one in payloads):
        payloads = sorted(payloads, key=lambda one: [choice["index"] for choice in one["choices"]] or [9])
    return [stable(one) for one in payloads]


def payloads_of(text: str) -> list[dict[str, Any]]:
    found = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(one) for one in found if one != "[DONE]"]


def streamed(client: RawClient) -> list[Any]:
    response = client.answer()
    assert response.status == 200
    found = essence(payloads_of(response.read().decode()))
    assert found
    return found


def alone(server: ServerProcess, path: str, body: dict[str, Any]) -> list[Any]:
    with RawClient(server.port) as client:
        post(client, path, body | {"stream": True})
        return streamed(client)


def check_stream(server: ServerProcess, path: str, body: dict[str, Any], number: int = signal.SIGKILL) -> None:
    """A stream whose process gets a signal is as it is alone, and ends elsewhere."""
    expected = alone(server, path, body)
    with RawClient(server.port) as client:
        request_id = post(client, path, body | {"stream": True})
        replica, pid = lose(server, request_id, number)
        try:
            assert streamed(client) == expected
        finally:
            if number is signal.SIGSTOP:
                os.kill(pid, signal.SIGCONT)
    assert ended_elsewhere(server, request_id, replica)


@pytest.mark.long
@pytest.mark.parametrize("name", ASKED)
def test_a_stream_goes_on_as_if_nothing_had_happened(crowd: ServerProcess, name: str) -> None:
    check_stream(crowd, *ASKED[name])


@pytest.mark.long
@pytest.mark.parametrize("name", ["two choices, with logprobs", "a call"])
def test_a_whole_answer_goes_on(crowd: ServerProcess, name: str) -> None:
    path, body = ASKED[name]
    expected = stable(crowd.http.post(path, json=body).json())
    with RawClient(crowd.port) as client:
        request_id = post(client, path, body)
        replica, _ = lose(crowd, request_id)
        answer = client.answer()
        assert answer.status == 200
        assert stable(json.loads(answer.read())) == expected
    assert ended_elsewhere(crowd, request_id, replica)


@pytest.mark.long
def test_an_answer_about_a_picture_goes_on(tmp_path: Path) -> None:
    model, projector = write_pair(tmp_path, "gemma3")
    picture = {"type": "image_url", "image_url": {"url": data_url(png(100, 60))}}
    asked = [{"role": "user", "content": [{"type": "text", "text": "what?"}, picture]}]
    with replicas(model, 2, "--mmproj", str(projector)) as server:
        all_serve(server)
        check_stream(server, "/v1/chat/completions", {"messages": asked, "ignore_eos": True, **FREE})


@pytest.mark.parametrize("number", mostly_long([signal.SIGTERM, signal.SIGSTOP], signal.SIGSTOP))
def test_a_process_that_ends_or_hangs_gives_its_answers_away(pair: ServerProcess, number: signal.Signals) -> None:
    check_stream(pair, *ASKED["two choices, with logprobs"], number)
    pair.wait_idle()


@pytest.mark.long
def test_what_a_stuck_process_has_of_an_answer_is_not_the_answer(pair: ServerProcess) -> None:
    path, body = ASKED["responses"]
    with RawClient(pair.port) as client:
        request_id = post(client, path, body | {"stream": True, "keep_going": True})
        _, pid = lose(pair, request_id, signal.SIGSTOP)
        told = payloads_of(client.answer().read().decode())[-1]["response"]
    stream = pair.http.get(f"/v1/stream/{request_id}").text
    os.kill(pid, signal.SIGCONT)
    pair.wait_for_log(rf"request {request_id} cancelled \(disconnect\)")
    for _ in range(3):
        assert pair.http.get(f"/v1/responses/{told['id']}").json()["output"] == told["output"]
        assert pair.http.get(f"/v1/stream/{request_id}").text == stream


@pytest.mark.long
def test_a_kept_stream_goes_on_and_its_readers_notice_nothing(crowd: ServerProcess) -> None:
    path, body = ASKED["a seed that was drawn"]
    expected = alone(crowd, path, body)
    with RawClient(crowd.port) as client:
        request_id = post(client, path, body | {"stream": True, "keep_going": True})
        crowd.wait_for(request_id, status="running", completion_tokens=lambda n: n > 0)
        client.leave("close")
    with crowd.http.stream("GET", f"/v1/stream/{request_id}") as reader:
        replica, _ = lose(crowd, request_id)
        assert essence(payloads_of(reader.read().decode())) == expected
    assert ended_elsewhere(crowd, request_id, replica)
    assert essence(payloads_of(crowd.http.get(f"/v1/stream/{request_id}").text)) == expected


@pytest.mark.long
def test_a_response_in_the_background_goes_on(crowd: ServerProcess) -> None:
    path, body = ASKED["responses"]
    expected = crowd.http.post(path, json=body).json()
    made = crowd.http.post(path, json=body | {"background": True}).json()
    request_id = made["id"].removeprefix("resp_")
    replica, _ = lose(crowd, request_id)
    assert ended_elsewhere(crowd, request_id, replica)
    all_serve(crowd)  # also the one that was lost, which has stored the beginning

    def response() -> dict[str, Any]:
        return crowd.http.get(f"/v1/responses/{made['id']}").json()

    found = until(response, lambda one: one["status"] not in ("queued", "in_progress"))
    assert (found["status"], stable(found["output"])) == (expected["status"], stable(expected["output"]))


ENDLESS: dict[str, Any] = {"prompt": "def f(", "stream": True, "max_tokens": 30_000}


def test_a_cancel_while_an_answer_moves_ends_it(pair: ServerProcess) -> None:
    """Both processes are lost, so the answer waits for one."""
    with ExitStack() as stack:
        client, newer = (stack.enter_context(RawClient(pair.port)) for _ in range(2))
        other = stack.enter_context(RawClient(pair.port))
        key = fresh_id()
        by_id, superseded = client.post(**ENDLESS), newer.post(supersede=key, **ENDLESS)
        for one in (by_id, superseded):
            pair.wait_for(one, status="running", completion_tokens=lambda n: n > 0)
        for replica in ("stdlib", "stdlib:2"):
            os.kill(process_of(pair, replica), signal.SIGKILL)
        assert pair.http.post(f"/v1/requests/{by_id}/cancel").json()["outcome"] == "cancelled"
        last = other.post(supersede=key, max_tokens=4)
        assert '"explicit"' in events(client.answer())[-1]
        assert '"superseded"' in events(newer.answer())[-1]
        assert other.answer().status == 200
        seen = pair.request(superseded)
        assert (seen["cancel_reason"], seen["superseded_by"]) == ("superseded", last)


@pytest.mark.long
def test_what_has_killed_two_processes_is_not_tried_a_third_time(pair: ServerProcess) -> None:
    with RawClient(pair.port) as client:
        request_id = client.post(**ENDLESS)
        replica, _ = lose(pair, request_id)
        pair.wait_for(request_id, replica=lambda name: name not in (None, replica))
        lose(pair, request_id)
        assert json.loads(events(client.answer())[-1])["error"]["code"] == "model_ended"
    assert pair.request(request_id)["finish_reason"] == "error"
