"""Batches, and responses in the background, of real servers: once stored, they outlive their clients and the servers.

They are asked for by the official ``openai`` client, of servers with one model and with several.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from pyllmcancel.cli import main
from tests import responses_crash
from tests.support.batches import COMPLETIONS, jsonl, line, results_in
from tests.support.http_process import START_LIMIT, ServerProcess, until

ENDED = ("completed", "failed", "expired", "cancelled")


@contextmanager
def client_of(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def begun(client: openai.OpenAI, lines: list[Any], **fields: Any) -> str:
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    options: Any = {"endpoint": COMPLETIONS, "completion_window": "24h"} | fields
    return client.batches.create(input_file_id=file.id, **options).id


def until_results(client: openai.OpenAI, name: str, n: float) -> Any:
    """Wait until a batch has this number of results, or has ended."""
    return until(
        lambda: client.batches.retrieve(name),
        lambda batch: batch.status in ENDED or (batch.request_counts and batch.request_counts.completed >= n),
        2 * START_LIMIT,
    )


def until_ended(client: openai.OpenAI, name: str) -> Any:
    return until_results(client, name, math.inf)


def output_of(client: openai.OpenAI, batch: Any) -> dict[str, dict[str, Any]]:
    return results_in(client.files.content(batch.output_file_id).text)


@pytest.mark.long
def test_the_client_creates_lists_cancels_and_deletes(server: ServerProcess) -> None:
    with client_of(server) as client:
        name = begun(client, [line(n) for n in range(3)], metadata={"a": "b"})
        batch = until_ended(client, name)
        assert (batch.status, batch.request_counts.completed, batch.metadata) == ("completed", 3, {"a": "b"})
        assert sorted(output_of(client, batch)) == ["0", "1", "2"]
        endless = begun(client, [line("short"), *(line(n, max_tokens=30_000) for n in range(4))])
        until_results(client, endless, 1)
        assert client.batches.cancel(endless).status in ("cancelling", "cancelled")
        batch = until_ended(client, endless)
        assert (batch.status, list(output_of(client, batch))) == ("cancelled", ["short"])
        assert [one.id for one in client.batches.list(limit=1)][:2] == [endless, name]
        files = [one.id for one in client.files.list(purpose="batch_output")]
        assert batch.output_file_id in files
        assert all(client.files.delete(one).deleted for one in files)
        with pytest.raises(openai.NotFoundError):
            client.files.content(batch.output_file_id)


@pytest.mark.long
@pytest.mark.parametrize("several", [False, True])
def test_a_killed_server_loses_no_result_and_has_none_twice(several: bool, long_model: Path, tmp_path: Path) -> None:
    model = ["--model", str(long_model)]
    if several:
        other = tmp_path / "other.gguf"
        other.write_bytes(long_model.read_bytes())
        model += ["--model", str(other), "--idle-loads"]
    names = ["long", "other"]
    options = (*model, "--ctx-size", "4096", "--parallel", "2", "--store", str(tmp_path / "store.db"))
    lines = [line(n, model=names[n % 2], max_tokens=150) for n in range(24)]
    batch_id, n_seen = "", 0
    for _ in range(2):
        with ServerProcess(*options) as server, client_of(server.started()) as client:
            batch_id = batch_id or begun(client, lines)
            batch = until_results(client, batch_id, n_seen + 4)
            assert batch.request_counts.completed >= n_seen
            n_seen = batch.request_counts.completed
            server.signal(signal.SIGKILL)
            server.wait()
    with ServerProcess(*options) as server, client_of(server.started()) as client:
        batch = until_ended(client, batch_id)
        output = output_of(client, batch)
    assert (batch.status, batch.request_counts.completed) == ("completed", len(lines))
    assert sorted(output, key=int) == [str(n) for n in range(len(lines))]
    if several:
        assert [output[str(n)]["response"]["body"]["model"] for n in range(4)] == names * 2


# -- responses in the background --------------------------------------------------------------------------------------


LONG = {"max_output_tokens": 30_000, "temperature": 0, "ignore_eos": True}
Serve = Callable[..., ServerProcess]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "responses.db"


@pytest.fixture
def serve(long_model: Path, store: Path) -> Iterator[Serve]:
    """Starts servers on one file, one after the other."""
    with ExitStack() as stack:

        def start(*options: str, **more: Any) -> ServerProcess:
            cells = ("--model", str(long_model), "--ctx-size", "32768", "--store", str(store), *options)
            return stack.enter_context(ServerProcess(*cells, **more)).started()

        yield start


def create(server: ServerProcess, **fields: Any) -> str:
    answer = server.http.post("/v1/responses", json={"input": "hello", "background": True} | fields)
    return answer.raise_for_status().json()["id"]


def status(server: ServerProcess, name: str) -> str:
    return server.http.get(f"/v1/responses/{name}").raise_for_status().json()["status"]


def until_response_ended(server: ServerProcess, name: str) -> str:
    return until(lambda: status(server, name), lambda seen: seen not in ("queued", "in_progress"))


@pytest.mark.long
def test_killed_again_and_again(tmp_path: Path) -> None:
    responses_crash.run(tmp_path, rounds=2, n_answers=60, seed=1)


def test_a_drain_lets_it_finish(serve: Serve) -> None:
    server = serve("--drain", "60")
    name = create(server, max_output_tokens=300, temperature=0, ignore_eos=True)
    server.signal()
    assert server.wait() == -signal.SIGTERM
    assert status(serve(), name) == "incomplete"


@pytest.mark.long
def test_a_file_in_use_ends_the_second_server(serve: Serve, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve()
    name = create(server, **LONG)
    assert main(["serve", "--port", "0", "--store", str(store)]) == 2
    assert "in use by another server" in capsys.readouterr().err
    assert status(server, name) in ("queued", "in_progress")
    server.http.post(f"/v1/responses/{name}/cancel").raise_for_status()


@pytest.mark.long
def test_without_a_name_the_file_is_where_xdg_says_and_a_second_server_stores_in_memory(
    long_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYLLMCANCEL_STORE")
    home = {"XDG_STATE_HOME": str(tmp_path)}
    options = ("--model", str(long_model), "--ctx-size", "4096")
    with ServerProcess(*options, environment=home) as first, ServerProcess(*options, environment=home) as second:
        servers = [first.started(), second.started()]
        names = [create(server, max_output_tokens=1) for server in servers]
        assert [until_response_ended(server, name) for server, name in zip(servers, names, strict=True)] == [
            "incomplete"
        ] * 2
        assert (tmp_path / "pyllmcancel" / "responses-0.db").is_file()
        until(lambda: sorted("in memory only" in server.log for server in servers), lambda seen: seen == [False, True])


# -- the official client ----------------------------------------------------------------------------------------------


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with client_of(server) as made:
        yield made


@pytest.mark.long
def test_the_client_creates_looks_cancels_and_deletes(client: openai.OpenAI) -> None:
    made = client.responses.create(model="any", input="hello", background=True, extra_body=LONG)
    assert client.responses.retrieve(made.id).status in ("queued", "in_progress")
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.cancel(made.id).status == "cancelled"
    (item,) = client.responses.input_items.list(made.id).data
    assert item.type == "message"
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    ended = client.responses.create(model="any", input="hello", max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(ended.id)


@pytest.mark.long
def test_the_clients_stream_helper_reads_a_stream_and_takes_it_up_again(client: openai.OpenAI) -> None:
    fields: Any = {"max_output_tokens": 5, "temperature": 0, "extra_body": {"ignore_eos": True}}
    with client.responses.stream(model="any", input="hello", background=True, **fields) as stream:
        name = next(iter(stream)).response.id  # type: ignore[union-attr]
    with client.responses.stream(response_id=name, starting_after=1) as stream:
        events = list(stream)
    assert events[0].sequence_number == 2
    assert events[-1].type == "response.incomplete"
    assert client.responses.retrieve(name).output_text == events[-1].response.output_text
