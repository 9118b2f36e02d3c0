"""Answers that move between workers which come and go: registered ones, with settings of their own."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.clients.model import write_patient_model
from tests.front.test_moves import post
from tests.support.http_process import START_LIMIT, RawClient, ServerProcess, events, until

pytestmark = pytest.mark.long
Add = Callable[..., ServerProcess]
ASKED: dict[str, Any] = {"prompt": "def f(", "max_tokens": 20_000, "temperature": 0.0}


@pytest.fixture
def front(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "secret").write_text("a key\n")
    options = ("--worker-key", str(tmp_path / "secret"), "--workers", "any", "--worker-silence", "2", "--drain", "0.2")
    with ServerProcess(*options) as process:
        process.listening()
        yield process


@pytest.fixture
def add(front: ServerProcess, tmp_path: Path) -> Iterator[Add]:
    model = write_patient_model(tmp_path / "stdlib.gguf")
    common = ("--model", str(model), "--worker-key", str(tmp_path / "secret"), "--spec-type", "none")
    with ExitStack() as stack:

        def start(name: str, ctx_size: int = 32_768, *options: str) -> ServerProcess:
            own = ("--worker", front.url, "--replica", name, "--ctx-size", str(ctx_size), *options)
            worker = stack.enter_context(ServerProcess(*common, *own)).started()
            until(lambda: loaded(front), lambda names: name in names, START_LIMIT)
            return worker

        yield start


def loaded(front: ServerProcess) -> list[str]:
    return [name for name, state in front.replicas().items() if state == "loaded"]


def running_at(front: ServerProcess, request_id: str, *others: str) -> str:
    """Return where a request computes, which is none of these."""
    elsewhere = {"replica": lambda name: name is not None and name not in others}
    return front.wait_for(request_id, status="running", completion_tokens=lambda n: n > 0, **elsewhere)["replica"]


def n_tokens_within(front: ServerProcess, request_id: str, seconds: float) -> int:
    before = front.request(request_id)["completion_tokens"]
    time.sleep(seconds)
    return front.request(request_id)["completion_tokens"] - before


def test_a_whole_answer_begins_anew_at_a_worker_with_other_settings(front: ServerProcess, add: Add) -> None:
    workers = {"one": add("one"), "two": add("two", 16_384)}
    with RawClient(front.port) as client:
        request_id = post(client, "/v1/completions", ASKED | {"max_tokens": 1_000})
        workers[running_at(front, request_id)].signal(signal.SIGKILL)
        assert client.answer().status == 200


def test_the_answers_of_a_worker_that_hangs_go_to_one_that_comes_later(front: ServerProcess, add: Add) -> None:
    one = add("one")
    with RawClient(front.port) as client:
        request_id = post(client, "/v1/completions", ASKED | {"stream": True})
        running_at(front, request_id)
        one.signal(signal.SIGSTOP)
        try:
            until(lambda: loaded(front), lambda names: not names)
            add("two")
            assert running_at(front, request_id, "one") == "two"
        finally:
            one.signal(signal.SIGCONT)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_rolling_restart_of_workers_cuts_nothing(front: ServerProcess, add: Add, is_full: bool) -> None:
    """The client does not read before the end; its connection is full or not when its workers leave."""
    workers = {name: add(name, 32_768, "--drain", "1") for name in ("one", "two", "three")}
    with RawClient(front.port) as client:
        request_id = post(client, "/v1/completions", ASKED | {"max_tokens": 6_000, "stream": True})
        were: list[str] = []
        for _ in range(2):
            were.append(running_at(front, request_id, *were))
            if is_full:
                until(lambda: n_tokens_within(front, request_id, 0.5), lambda n: n == 0)
            workers[were[-1]].signal()
        running_at(front, request_id, *were)
        assert events(client.answer())[-1] == "[DONE]"
