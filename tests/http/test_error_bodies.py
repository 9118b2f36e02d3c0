"""Errors that come before any handler, or instead of one: in the shape of the API, with the id, and a right status."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.http_asgi import Exchange
from tests.support.http_process import RawClient, ServerProcess
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world, unnamed

KEYS = {"message", "type", "param", "code", "request_id"}


def error_of(exchange: Exchange, status: int, code: str) -> dict[str, Any]:
    assert exchange.status == status, exchange.body
    error: dict[str, Any] = exchange.json()["error"]
    assert set(error) == KEYS
    assert (error["code"], error["request_id"]) == (code, exchange.headers["x-request-id"])
    return error


async def test_an_unknown_path_is_404(world: World) -> None:
    for method in ("GET", "POST"):
        error = error_of(await world.begin(method, "/v1/nowhere").end(), 404, "unknown_url")
        assert error["message"] == f"there is no {method} /v1/nowhere"


LLAMA_KEYS = {"code", "message", "type", "param", "reason", "request_id"}


@pytest.mark.parametrize(
    ("method", "path", "options", "told"),
    [
        ("POST", "/completion", {"body": {"prompt": 1.5}}, (400, "invalid_request_error", "invalid_request")),
        ("POST", "/infill", {"body": b"{"}, (400, "invalid_request_error", "invalid_json")),
        ("POST", "/completions", {"headers": {"x-api-key": ""}}, (401, "authentication_error", "invalid_api_key")),
        ("GET", "/slots/a/b", {}, (404, "not_found_error", "unknown_url")),
        ("DELETE", "/tokenize", {}, (405, "invalid_request_error", "method_not_allowed")),
        ("POST", "/detokenize", {"body": b"x" * 999}, (413, "invalid_request_error", "body_too_large")),
        ("POST", "/apply-template", {"headers": {"content-type": "x"}}, (415, "invalid_request_error", None)),
        ("POST", "/props", {}, (501, "not_supported_error", "not_supported")),
        ("POST", "/lora-adapters", {"body": b"{}"}, (400, "invalid_request_error", "invalid_request")),
    ],
)
async def test_llama_servers_endpoints_have_llama_servers_errors(
    method: str, path: str, options: dict[str, Any], told: tuple[int, str, str | None]
) -> None:
    async with open_world(api_keys=unnamed("key"), max_body=99) as world:
        headers = {"x-api-key": "key"} | options.pop("headers", {})
        exchange = await world.begin(method, path, headers=headers, **options).end()
        status, kind, reason = told
        error = exchange.json()["error"]
        assert set(error) == LLAMA_KEYS
        assert (exchange.status, error["code"], error["type"]) == (status, status, kind)
        assert error["reason"] == (reason or "unsupported_media_type")
        assert error["request_id"] == exchange.headers["x-request-id"]


async def test_llama_servers_error_of_a_context_that_is_too_small_has_its_type_and_both_sizes() -> None:
    async with open_world(n_ctx=64) as world:
        error = (await world.post("/completion", {"prompt": "x" * 100})).json()["error"]
        assert (error["code"], error["type"]) == (400, "exceed_context_size_error")
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (100, 64)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", COMPLETIONS, "POST"),
        ("DELETE", CHAT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("PUT", "/health", "GET, HEAD"),
        ("PUT", "/v1/requests/mine", "DELETE, GET"),
    ],
)
async def test_a_wrong_method_is_405_and_the_answer_says_what_is_allowed(
    world: World, method: str, path: str, allowed: str
) -> None:
    exchange = await world.begin(method, path).end()
    error_of(exchange, 405, "method_not_allowed")
    assert exchange.headers["allow"] == allowed


async def test_a_missing_content_type_is_415(world: World) -> None:
    exchange = Exchange(world.app, "POST", COMPLETIONS, body=b'{"prompt": "x"}')
    error_of(await exchange.end(), 415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "application/vnd.api+json"])
async def test_other_spellings_of_json_are_accepted(world: World, content_type: str) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'
    assert (await world.post(COMPLETIONS, body, headers={"content-type": content_type})).status == 200


@pytest.mark.parametrize("depth", [500, 900, 980, 1000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
async def test_json_that_is_nested_deeply_is_refused_wherever_the_stack_ends(
    world: World, depth: int, opening: str
) -> None:
    closing = ("]" if opening == "[" else "}") * depth
    body = f'{{"prompt": "x", "metadata": {{"a": {opening * depth}1{closing}}}, "n": 0}}'
    exchange = await world.post(COMPLETIONS, body.encode())
    assert exchange.status == 400
    assert set(exchange.json()["error"]) == KEYS


async def test_a_line_feed_in_a_path_makes_no_line_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="pyllmcancel.access")
    await world.get("/x\n12:00:00 INFO forged")
    assert '"GET /x%0A12:00:00%20INFO%20forged" 404' in caplog.text


async def test_the_most_tokens_that_the_server_allows_are_a_default_and_a_limit() -> None:
    async with open_world(n_predict=3) as world:
        for fields in ({}, {"max_tokens": 2}, {"max_tokens": 100}):
            exchange = await world.chat(ignore_eos=True, **fields).end()
            expected = min(3, fields.get("max_tokens", 3))
            assert exchange.json()["usage"]["completion_tokens"] == expected
            assert exchange.json()["choices"][0]["finish_reason"] == "length"


async def test_the_servers_seed_is_that_of_requests_without_one() -> None:
    async with open_world(seed=7) as world:
        texts = []
        for fields in ({}, {}, {"seed": 7}, {"seed": 8}):
            exchange = await world.complete(max_tokens=16, temperature=5, **fields).end()
            texts.append(exchange.json()["choices"][0]["text"])
        assert texts[0] == texts[1] == texts[2] != texts[3]


@pytest.mark.parametrize(
    "sent",
    [b"NOT HTTP AT ALL\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"],
)
def test_what_is_no_http_gets_the_same_body_and_an_id(server: ServerProcess, sent: bytes) -> None:
    with RawClient(server.port) as client:
        client.socket.sendall(sent)
        answer = client.answer()
        assert (answer.status, answer.headers["content-type"]) == (400, "application/json")
        error = json.loads(answer.read())["error"]
        assert set(error) == KEYS
        assert (error["code"], error["request_id"]) == ("invalid_http", answer.headers["x-request-id"])
        assert client.socket.recv(1) == b"", "the connection is closed"


def test_what_is_no_http_behind_a_request_that_was_answered_closes_the_connection(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.post(max_tokens=1)
        answer = client.answer()
        assert answer.status == 200
        answer.read()
        client.socket.sendall(b"NOT HTTP AT ALL\r\n\r\n")
        assert client.answer().status == 400


def test_what_is_no_http_in_the_middle_of_an_answer_does_not_harm_the_server(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.socket.sendall(head.encode() + b"not a length\r\n")
        assert client.answer().status == 400
    assert server.http.get("/health").status_code == 200
    assert "Traceback" not in server.log
