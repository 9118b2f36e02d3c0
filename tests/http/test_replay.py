"""Requests of real clients, from the files in replay/: each is served as it is, streamed as it asks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http_process import ServerProcess

FILES = sorted((Path(__file__).parent / "replay").glob("*.json"))
SHORT = "24"  # tokens of each answer: what the model says is not looked at
# The last event of a complete stream, by route; of others OpenAI's.
LAST = {
    "/v1/responses": ('"type": "response.completed"', '"type": "response.incomplete"'),
    "/v1/messages": ('"type": "message_stop"',),
    "/completion": ('"stop": true',),
    "/infill": ('"stop": true',),
}


@pytest.fixture(scope="module")
def packaged() -> Iterator[ServerProcess]:
    with ServerProcess("--n-predict", SHORT) as process:
        yield process.started()
        process.wait_idle()


def cases() -> list[Any]:
    found = []
    for file in FILES:
        marks = () if file.stem in {"claude_code", "codex", "llama_vim", "openai"} else pytest.mark.long
        for number, request in enumerate(json.loads(file.read_text("utf-8"))["requests"]):
            found.append(pytest.param(request, id=f"{file.stem} {number} {request['route']}", marks=marks))
    return found


@pytest.mark.parametrize("request_sent", cases())
def test_a_client_is_served_as_it_is(packaged: ServerProcess, request_sent: dict[str, Any]) -> None:
    body = request_sent["body"]
    url = packaged.url + request_sent["route"]
    answer = httpx.post(url, json=body, headers=request_sent["headers"], timeout=50)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-ignored-fields", "") == ", ".join(request_sent.get("ignored", ()))
    if not body.get("stream"):
        assert isinstance(answer.json(), dict)
        return
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert any(mark in events[-1] for mark in LAST.get(request_sent["route"], ("[DONE]",))), events[-1]
    assert not any(event.startswith('{"error"') for event in events)


def test_every_client_has_a_file_that_says_where_it_is_from() -> None:
    assert len(FILES) >= 19
    for file in FILES:
        told = json.loads(file.read_text("utf-8"))
        assert {"client", "version", "source", "requests"} == set(told)
        assert all(told.values())
