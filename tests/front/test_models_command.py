"""``pyllmcancel models status``, ``load``, ``unload`` and ``restart``, against a server that answers as it was told."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pyllmcancel.cli import main
from tests.support import stub_server

Answers = dict[str, list[tuple[int, Any]]]


class Scripted(stub_server.StubServer):
    """Gives the next answer of a path; the last one again and again."""

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.asked: list[tuple[str, Any, str | None]] = []
        super().__init__(Handler)


class Handler(stub_server.Handler):
    server: Scripted

    def do_GET(self) -> None:  # noqa: N802 - named by the library
        body = self.body()
        self.server.asked.append((self.path, json.loads(body) if body else None, self.headers.get("authorization")))
        answers = self.server.answers[self.path]
        status, told = answers.pop(0) if len(answers) > 1 else answers[0]
        self.reply(status, json.dumps(told).encode())

    do_POST = do_GET  # noqa: N815


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


def run(server: Scripted, *words: str) -> int:
    return main(["models", *words, "--url", f"{server.url}/", "--api-key", "secret"])


def entry(value: str, **status: Any) -> dict[str, Any]:
    return {"id": "a", "size": 3 << 30, "running": 1, "waiting": 2, "status": {"value": value} | status}


def test_status_is_a_table(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    replicas = [{"status": {"value": value}} for value in ("loaded", "loading")]
    models = [entry("loaded") | {"replicas": replicas}, entry("loading", progress=0.4)]
    models.append(entry("unloaded", failed=True, error="too large"))
    server.answers["/v1/models"] = [(200, {"data": models})]
    assert run(server, "status") == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["MODEL", "STATUS", "SIZE", "RUNNING", "WAITING"]
    assert [re.split(r" {2,}", line)[1] for line in lines[:3]] == ["loaded (1 of 2)", "loading 40%", "failed"]
    assert lines[3:] == ["too large"]
    assert server.asked == [("/v1/models", None, "Bearer secret")]


def test_load_waits_until_the_model_is_loaded(server: Scripted) -> None:
    server.answers["/models/load"] = [(200, {"success": True})]
    server.answers["/v1/models/a"] = [(200, entry("loading")), (200, entry("loading")), (200, entry("loaded"))]
    assert run(server, "load", "a") == 0
    assert server.asked[0][:2] == ("/models/load", {"model": "a"})
    assert len(server.asked) == 4


@pytest.mark.parametrize("action", ["unload", "restart"])
def test_the_server_is_told_the_model(server: Scripted, action: str) -> None:
    server.answers[f"/models/{action}"] = [(200, {"success": True})]
    assert run(server, action, "a") == 0
    assert server.asked == [(f"/models/{action}", {"model": "a"}, "Bearer secret")]


def test_a_load_that_fails_says_why(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/models/load"] = [(200, {"success": True})]
    server.answers["/v1/models/a"] = [(200, entry("loading")), (200, entry("unloaded", failed=True, error="too large"))]
    assert run(server, "load", "a") == 1
    assert capsys.readouterr().err == "pyllmcancel: too large\n"


def test_a_refusal_is_one_line(server: Scripted, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/models/unload"] = [(400, {"error": {"message": "the model a is not loaded"}})]
    assert run(server, "unload", "a") == 1
    assert capsys.readouterr().err == "pyllmcancel: the model a is not loaded\n"
    server.answers["/models/unload"] = [(500, "oops")]
    assert run(server, "unload", "a") == 1
    assert capsys.readouterr().err == "pyllmcancel: the server answered with status 500\n"
