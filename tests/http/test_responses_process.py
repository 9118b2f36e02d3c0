"""Responses in the background of a real server: they outlive their clients and, once stored, the server."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from pyllmcancel.cli import main
from tests import responses_crash
from tests.support.http_process import ServerProcess, until

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


def until_ended(server: ServerProcess, name: str) -> str:
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
        assert [until_ended(server, name) for server, name in zip(servers, names, strict=True)] == ["incomplete"] * 2
        assert (tmp_path / "pyllmcancel" / "responses-0.db").is_file()
        until(lambda: sorted("in memory only" in server.log for server in servers), lambda seen: seen == [False, True])


# -- the official client ----------------------------------------------------------------------------------------------


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
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
