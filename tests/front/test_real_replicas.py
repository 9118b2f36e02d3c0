"""Two replicas of one model, with their real processes: what is named is found, on whichever it is."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.clients.model import write_patient_model
from tests.support.http_process import LIMIT, START_LIMIT, RawClient, ServerProcess, fresh_id, until

pytestmark = pytest.mark.long

NAMES = ["stdlib", "stdlib:2"]
ENDLESS: dict[str, Any] = {"stream": True, "max_tokens": 30_000}


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path_factory.mktemp("supervisor") / "notify"))
        supervisor.settimeout(LIMIT)
        yield supervisor


@pytest.fixture(scope="module")
def server(supervisor: socket.socket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_patient_model(tmp_path_factory.mktemp("replicas") / "stdlib.gguf")
    options = (str(model), "--replicas", "2", "--ctx-size", "32768", "--spec-type", "none")
    with ServerProcess(*options, environment={"NOTIFY_SOCKET": supervisor.getsockname()}) as process:
        process.started()
        until(process.replicas, lambda found: [*found.values()] == ["loaded"] * 2, START_LIMIT)
        yield process


def place(server: ServerProcess, request_id: str) -> str:
    return server.wait_for(request_id, status="running")["replica"]


def test_the_supervisor_is_told_once_by_the_process_in_front(server: ServerProcess, supervisor: socket.socket) -> None:
    assert server.http.get("/health").status_code == 200
    assert supervisor.recv(4096) == b"READY=1\nSTATUS=serving"
    supervisor.setblocking(False)
    with pytest.raises(BlockingIOError):
        supervisor.recv(4096)


def test_the_newest_request_of_a_key_lives_and_stays_where_the_older_one_was(server: ServerProcess) -> None:
    key = fresh_id()
    with ExitStack() as clients:
        older, newer, *others = (clients.enter_context(RawClient(server.port)) for _ in range(5))
        first = older.post(supersede=key, **ENDLESS)
        its_place = place(server, first)
        places = [its_place, *(place(server, one.post(**ENDLESS)) for one in others)]
        assert sorted(places) == sorted(NAMES * 2)
        second = newer.post(supersede=key, **ENDLESS)
        seen = server.wait_for(first, status="cancelled")
        assert (seen["cancel_reason"], seen["superseded_by"]) == ("superseded", second)
        assert place(server, second) == its_place


def test_a_stream_is_taken_up_again_on_the_replica_that_has_it(server: ServerProcess) -> None:
    with RawClient(server.port) as other:
        place(server, other.post(**ENDLESS))
        for number in range(2):
            name = fresh_id()
            body = {"prompt": "def f", "stream": True, "max_tokens": 8}
            whole = server.http.post("/v1/completions", json=body, headers={"X-Conversation-Id": name}).text
            assert server.http.get(f"/v1/stream/{name}").text == whole, number


def test_lists_and_metrics_name_both_replicas(server: ServerProcess) -> None:
    with RawClient(server.port) as first, RawClient(server.port) as second:
        ids = [one.post(**ENDLESS) for one in (first, second)]
        assert sorted(place(server, one) for one in ids) == NAMES
        listed = server.http.get("/v1/requests?status=running").json()["data"]
        assert sorted(one["replica"] for one in listed if one["id"] in ids) == NAMES
        text = server.http.get("/metrics").text
        for name in NAMES:
            assert f'pyllmcancel_requests_waiting{{model="stdlib",replica="{name}"}}' in text
