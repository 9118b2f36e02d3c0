"""Streams that are taken up again, on the real core and over sockets."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.http_process import WAYS_TO_LEAVE, RawClient, ServerProcess, until

LONG = {"stream": True, "max_tokens": 30_000, "temperature": 0, "ignore_eos": True}


def pieces(server: ServerProcess, name: str, start: int = 0) -> Iterator[bytes]:
    with server.http.stream("GET", f"/v1/stream/{name}", params={"from": start}) as answer:
        assert answer.status_code == 200
        yield from answer.iter_raw()


def begin(server: ServerProcess, client: RawClient, field: str = "completion_tokens", **fields: object) -> str:
    """Send a request, and wait until it has come so far; its id."""
    request_id = client.post(**fields)
    until(lambda: server.request(request_id).get(field, 0), bool)
    return request_id


def text_of(stream: bytes) -> str:
    events = [one.removeprefix("data: ") for one in stream.decode().split("\n\n") if one.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])


@pytest.mark.parametrize("way", WAYS_TO_LEAVE)
def test_an_answer_goes_on_whichever_way_its_client_leaves(server: ServerProcess, way: str) -> None:
    with RawClient(server.http.base_url.port or 0) as client:
        mine = begin(server, client, **(LONG | {"max_tokens": 200}), keep_going=True, prompt="one two three")
        client.leave(way)
    kept = b"".join(pieces(server, mine))
    assert kept.endswith(b"data: [DONE]\n\n")
    ended = server.wait_for(mine, status="finished", readers=0)
    assert ended["completion_tokens"] == 200
    assert len(text_of(kept)) > 0
    assert b"".join(pieces(server, mine)) == kept


def test_a_client_that_leaves_in_the_prompt_s_computation_finds_the_answer(server: ServerProcess) -> None:
    with RawClient(server.http.base_url.port or 0) as client:
        fields = {"stream": True, "max_tokens": 3, "keep_going": True, "prompt": "word " * 1_000}
        mine = begin(server, client, "prompt_tokens", **fields)
        client.leave("reset")
    assert b"".join(pieces(server, mine)).endswith(b"data: [DONE]\n\n")


def test_a_stream_is_deleted_and_another_client_s_answer_goes_on(server: ServerProcess) -> None:
    with RawClient(server.http.base_url.port or 0) as client, RawClient(server.http.base_url.port or 0) as other:
        theirs = begin(server, other, **LONG)
        mine = begin(server, client, **LONG, keep_going=True)
        client.leave("reset")
        reading = pieces(server, mine)
        next(reading)
        assert httpx.delete(f"{server.url}/v1/stream/{mine}", timeout=60).status_code == 204
        assert server.request(mine)["cancel_reason"] == "explicit"
        rest = b"".join(reading)
        assert json.loads(rest.decode().strip().rpartition("data: ")[2])["error"]["code"] == "explicit"
        assert server.request(theirs)["status"] == "running"


def test_a_reader_that_does_not_read_holds_up_neither_the_answer_nor_other_readers(server: ServerProcess) -> None:
    with RawClient(server.http.base_url.port or 0, receive_buffer=4_096) as client:
        mine = begin(server, client, **(LONG | {"max_tokens": 800}), keep_going=True)
        assert b"".join(pieces(server, mine)).endswith(b"data: [DONE]\n\n")
        assert server.wait_for(mine, status="finished")["completion_tokens"] == 800


def test_a_server_ends_although_a_stream_goes_on(long_model: Path) -> None:
    options = ("--model", str(long_model), "--ctx-size", "32768", "--parallel", "1", "--drain", "0")
    with ServerProcess(*options) as process:
        server = process.started()
        with RawClient(server.http.base_url.port or 0) as client:
            mine = begin(server, client, **LONG, keep_going=True)
        reading = pieces(server, mine)
        next(reading)
        process.signal()
        rest = b"".join(reading)
        assert json.loads(rest.decode().strip().rpartition("data: ")[2])["error"]["code"] == "shutdown"
        assert process.wait() == -signal.SIGTERM
