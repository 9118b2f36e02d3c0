"""The words for cancels and errors, and the addresses that are asked."""

import json
from typing import Any

import httpx
import pytest

from pyllmcancel.top.client import ServerError, cancel, open_client, read
from tests.top.stage import METRICS, Stage, entry

DONE = {"id": "r", "outcome": "cancelled", "reason": "explicit", "phase": "decode", "cancel_latency_ms": 1.94}
STOPPED = "compute stopped after 1.9 ms, in decode"
SAID = {
    "cancelled": (200, DONE, f"a/b: {STOPPED}"),
    "waited": (200, DONE | {"cancel_latency_ms": None}, "a/b: cancelled"),
    "ended": (200, {"outcome": "already_finished", "reason": "\x1bstop"}, "a/b: it had ended already (\ufffdstop)"),
    "no request": (200, {"requests": []}, "a/b: nothing was live"),
    "two requests": (200, {"requests": [DONE, DONE]}, f"a/b: {STOPPED}; {STOPPED}"),
    "unknown": (404, {"error": {"message": "no such"}}, "not cancelled: 404: no such"),
    "no object": (200, [1], "not cancelled: 200: OK"),
}
REFUSALS: dict[str, tuple[int, Any, dict[str, str], str]] = {
    "no key": (401, {}, {}, "401: give its API key with --api-key KEY"),
    "loading": (503, {"error": {"message": "the model\x1b is loading"}}, {}, "503: the model\ufffd is loading"),
    "no list": (404, {}, {}, "404: is it a pyllmcancel?"),
    "moved": (301, {}, {"Location": "https://x/"}, "it has moved to https://x/: name that with --url"),
    "no JSON": (200, None, {}, "is it a pyllmcancel of this version"),
    "another list": (200, {"data": [3]}, {}, "is it a pyllmcancel of this version"),
}


def client_of(status: int, fields: Any, asked: list[str], headers: dict[str, str] | None = None) -> httpx.Client:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(f"{request.method} {request.url.raw_path.decode()}")
        return httpx.Response(status, content=json.dumps(fields).encode(), headers=headers)

    return httpx.Client(transport=httpx.MockTransport(answer), base_url="http://here")


@pytest.mark.parametrize("kind", SAID)
def test_a_cancel_and_what_is_said_of_it(kind: str) -> None:
    status, fields, words = SAID[kind]
    asked: list[str] = []
    with client_of(status, fields, asked) as client:
        assert cancel(client, "requests", "a/b", "") == words
    assert asked == ["POST /v1/requests/a%2Fb/cancel"]


def test_a_name_stays_one_part_of_the_address_and_an_administrator_says_whose_it_is() -> None:
    asked: list[str] = []
    with client_of(200, {"requests": []}, asked) as client:
        cancel(client, "sessions", "../?x", "bob & co")
    assert asked == ["POST /v1/sessions/%2E%2E%2F%3Fx/cancel?owner=bob+%26+co"]


@pytest.mark.parametrize("name", ["half a pair \ud800", "a" * 70_000])
def test_a_name_that_fits_into_no_address(name: str) -> None:
    with client_of(200, DONE, []) as client:
        assert cancel(client, "requests", name, "") == "not cancelled: its name does not fit into an address"


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_cannot_be_read_is_said_in_a_line_that_helps(kind: str) -> None:
    status, fields, headers, words = REFUSALS[kind]
    with client_of(status, fields, [], headers) as client, pytest.raises(ServerError) as raised:
        read(client)
    assert words in str(raised.value)
    assert str(raised.value).isprintable()


def test_nobody_there() -> None:
    with open_client("127.0.0.1:1/v1", "") as client:
        with pytest.raises(ServerError, match=r"http://127.0.0.1:1/?: connection refused; start a server with"):
            read(client)
        assert cancel(client, "requests", "a", "").startswith("not cancelled: connection refused")


@pytest.mark.parametrize("url", ["http://", "ftp://here", "http://here:x", "http://\ud800"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ServerError, match="address"):
        open_client(url, "")


def test_a_key_that_no_header_can_carry() -> None:
    with pytest.raises(ServerError, match="--api-key contains"):
        open_client("http://here", "\N{SNOWMAN}")


def test_figures_of_several_models_are_summed_and_a_refusal_of_figures_is_no_error(stage: Stage) -> None:
    stage.say("/v1/requests", {"data": [entry("a")], "unreached": [{"replica": "two", "why": "gone"}]})
    two = "".join(line.replace(" ", '{model="b"} ') + "\n" for line in METRICS.splitlines() if "{" not in line)
    stage.answers["/metrics"] = 200, (METRICS + two).encode()
    with open_client(stage.url, "secret") as client:
        found = read(client)
        assert (found.metrics["slots"], found.names, found.unreached) == (8.0, ["1.2.3", "small-model"], ["two: gone"])
        stage.say("/metrics", {}, 403)
        assert read(client).metrics == {}
    assert stage.keys == {"Bearer secret"}
