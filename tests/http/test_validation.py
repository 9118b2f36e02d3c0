"""Invalid requests are refused in words, with the field's name, before any event; and other errors have that shape."""

import json
from typing import Any

import pytest

from tests.support.fake_model import EOS
from tests.support.http_asgi import Exchange
from tests.support.http_process import RawClient, ServerProcess
from tests.support.http_world import CHAT, COMPLETIONS, World, open_world, unnamed

USER = {"role": "user", "content": "x"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
NAN, INF = float("nan"), float("inf")
NEEDED: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "x"},
    CHAT: {"messages": [USER]},
    "/completion": {"prompt": "x"},
    "/infill": {"input_prefix": "x", "input_suffix": "y"},
    "/tokenize": {"content": "x"},
    "/detokenize": {},
}


KEYS = {"message", "type", "param", "code", "request_id"}


def assert_refused(exchange: Exchange, param: str | None, code: str | None = None, status: int = 400) -> str:
    assert exchange.status == status, exchange.body
    assert exchange.headers["x-should-retry"] == "false"
    assert exchange.headers["content-type"] == "application/json"
    error = exchange.json()["error"]
    assert set(error) == KEYS | ({"n_prompt_tokens", "n_ctx"} if code == "context_length_exceeded" else set())
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert error["request_id"] == exchange.headers["x-request-id"]
    assert code in (None, error["code"])
    return str(error["message"])


# By path and field: what is no value of it.
BAD: dict[str, dict[str, list[Any]]] = {
    COMPLETIONS: {
        "prompt": [None, "", [], [""], [[]], [-1], [257], [2**40], {"a": 1}, ["a", 1], "x" * 1024],
        "max_tokens": [-2, "many"],
        "n": [0, 129],
        "temperature": [-1, NAN, INF],
        "top_p": [1.5],
        "min_p": [-0.5],
        "top_k": [2**31],
        "typical_p": [2],
        "frequency_penalty": [3],
        "presence_penalty": [-3],
        "repeat_penalty": [0],
        "dry_multiplier": [-1],
        "mirostat": [3],
        "logprobs": [21],
        "logit_bias": [{"x": 1}, {"1": 101}, {"1": NAN}, {"257": 1}, {"-1": 1}, {str(2**40): 1}],
        "seed": ["x", 2**64],
        "stop": [1, ["x"] * 65],
        "timeout": [0, -1, INF, NAN, 1e300],
        "stream_options": [{"include_usage": "perhaps"}],
        "priority": [2**31, -(2**31) - 1, 0.5, "1", True],
        "repetition_limit": [-1, 10_001, 2.5, "32"],
        "best_of": [0, 129],
        "suffix": ["x"],
        "echo": ["yes please"],
    },
    CHAT: {
        "messages": [None, [], "x", [{"content": "x"}], [USER | {"role": ""}], [USER | {"content": "x" * 2000}]],
        "max_completion_tokens": [-2],
        "top_logprobs": [21],
        "logprobs": [3],
        "add_special_tokens": [True],
        "think": ["a lot"],
    },
    "/completion": {
        "prompt": ["", [], [[]], {"prompt_string": 1}, [[1, [2]]], [True], [257], None],
        "n_predict": [-2],
        "temperature": [NAN],
        "top_p": [2],
        "samplers": [["top_q"], "kz"],
        "logit_bias": [[[1, True]], [[300, 1.0]], {"9" * 5000: 1.0}, [["a", 1e300]]],
        "grammar": ["no root"],
        "json_schema": [{"type": "hiccup"}],
        "adaptive_target": [0.5],
        "lora": [[{"id": 0, "scale": 1}]],
        "n_cmpl": [0],
        "response_fields": ["content"],
        "t_max_predict_ms": ["soon"],
    },
    "/infill": {
        "input_prefix": [None, 1],
        "input_suffix": [None],
        "prompt": [["x"]],
        "input_extra": [{"text": "x"}, [{"filename": "x"}], [{"text": "x", "filename": 1}], ["x"]],
    },
    "/tokenize": {"content": [1, [257]], "with_pieces": ["yes"]},
    "/detokenize": {"tokens": [[257], [-1], ["x"], "x"]},
}
# The same, on both of OpenAI's endpoints.
BAD_ON_BOTH: dict[str, list[Any]] = {
    "allowed_token_ids": [[EOS + 1]],
    "guided_regex": ["("],
    "guided_json": ["{", "[]"],
    "guided_grammar": ["roof ::= [a-z]", "start: nothing"],
    "structured_outputs": [{"xml": "x"}, {"regex": "x", "choice": ["y"]}],
    "format": ["xml"],
    "logit_bias": [[1], [["a", 1]]],
    "stop_token_ids": [["x"]],
    "options": [{"temperature": "hot"}],
    "n_cmpl": [0],
}
# Fields that do not go together, and the one that is named.
APART: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}, "n"),
    (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of"),
    (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
    (COMPLETIONS, {"truncate_prompt_tokens": 3, "echo": True}, "truncate_prompt_tokens"),
    (COMPLETIONS, {"truncate_prompt_tokens": 3, "suffix": "x"}, "truncate_prompt_tokens"),
    (COMPLETIONS, {"suffix": "x", "echo": True}, "echo"),
    (COMPLETIONS, {"suffix": "x", "prompt": [97, 98]}, "suffix"),
    (COMPLETIONS, {"prompt": [999_999_999], "echo": True}, "prompt"),
    (COMPLETIONS, {"prompt": [[1], [999_999_999]], "echo": True}, "prompt"),
    (CHAT, {"tools": TOOLS, "guided_regex": "x"}, "guided_regex"),
    (CHAT, {"tools": TOOLS, "min_tokens": 2}, "min_tokens"),
    (CHAT, {"tools": TOOLS, "allowed_token_ids": [97]}, "allowed_token_ids"),
    (CHAT, {"tools": TOOLS, "grammar": 'root ::= "x"'}, "grammar"),
    ("/completion", {"json_schema": {}, "grammar": "root ::= [a-z]"}, "json_schema"),
]
for both in (COMPLETIONS, CHAT):
    APART += [
        (both, {"min_tokens": 2, "grammar": 'root ::= "x"'}, "min_tokens"),
        (both, {"min_tokens": 2, "samplers": ["infill"]}, "min_tokens"),
        (both, {"allowed_token_ids": [97], "guided_choice": ["x"]}, "allowed_token_ids"),
        (both, {"guided_choice": ["x"], "json_schema": {}}, "guided_choice"),
        *((both, {field: value}, field) for field, values in BAD_ON_BOTH.items() for value in values),
    ]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [(path, {name: one}, name) for path, bad in BAD.items() for name, values in bad.items() for one in values] + APART,
)
async def test_a_bad_field_is_named(world: World, path: str, fields: dict[str, Any], param: str) -> None:
    if fields != {"suffix": "x"}:  # of which the model has to be able
        world.model.special_tokens = world.model.special_tokens | {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3}
    for stream in ({}, {"stream": True}):
        exchange = await world.post(path, NEEDED[path] | stream | fields)
        assert exchange.refusal == (400, param), exchange.body
        if path in (COMPLETIONS, CHAT):
            assert_refused(exchange, param, exchange.json()["error"]["code"])
    assert await world.requests() == []


# By what is asked: values of a query that are none, and names that cannot come, which are not held.
QUERIES: list[tuple[str, str, str]] = [
    ("GET", "/v1/requests?status=asleep", "status"),
    *(("GET", f"/v1/steps?last={value}", "last") for value in ("0", "1025", "x")),
    *(("GET", f"/v1/events?types={value}", "types") for value in ("", "added,", "Added", "added,x", "*")),
    *(("GET", f"/v1/stream/mine?from={value}", "from") for value in ("-1", "1e3", "x", "9" * 30, "1000000")),
    ("GET", "/metrics?format=other", "format"),
    ("POST", "/slots/0?action=polish", "action"),
    *(("POST", f"/v1/requests/mine/cancel?hold={value}", "hold") for value in ("-1", "61", "x", "nan")),
    ("POST", "/v1/requests/mine/cancel?wait=perhaps", "wait"),
    *(("POST", f"/v1/sessions/{name}/cancel?hold=60", "session_id") for name in ("x" * 257, "a\x7fb")),
    ("POST", f"/v1/sessions/{'x' * 257}/cancel", "session_id"),
    *(("POST", f"/v1/requests/{name}/cancel?hold=60", "request_id") for name in ("x" * 129, "two words")),
]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (COMPLETIONS, {"prompt": [1, 2, 2**40]}, "prompt.2: Input should be less than 2147483648"),
        (CHAT, {"messages": [USER | {"content": 5}]}, "messages.0.content: Input should be a valid list"),
        ("/v1/responses", {"input": [{"type": "message", "role": "user"}]}, "input.0.message.content: Field required"),
    ],
)
async def test_the_place_of_an_error_is_that_in_the_body(
    world: World, path: str, fields: dict[str, Any], message: str
) -> None:
    answer = await world.post(path, NEEDED.get(path, {}) | fields)
    assert assert_refused(answer, next(iter(fields))) == message


@pytest.mark.parametrize(("method", "path", "param"), QUERIES)
async def test_a_bad_query_is_named(world: World, method: str, path: str, param: str) -> None:
    mine = {"x-request-id": "mine"}
    assert (await world.complete(stream=True, keep_going=True, max_tokens=1, headers=mine).end()).status == 200
    assert (await world.begin(method, path).end()).refusal == (400, param)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "body"),
        *((body, "not valid JSON") for body in (b"{", b"{]", b'{"prompt": x}', b"\xff\xfe", b'{"prompt": "x"')),
        (b'{"prompt": "\xff"}', "unicode"),
        (b'{"prompt": "x", "n": ' + b"1" * 5000 + b"}", "number out of range"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_body_that_is_no_json_is_said_to_be_none(world: World, path: str, body: bytes, part: str) -> None:
    assert part in assert_refused(await world.post(path, body), None, "invalid_json")


@pytest.mark.parametrize("priority", ["high", "1.5", str(2**31)])
async def test_a_priority_of_a_wrong_form_is_refused_in_a_header(world: World, priority: str) -> None:
    assert (await world.complete(headers={"x-priority": priority}).end()).refusal == (400, "X-Priority")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("field", ["prompt", "session_id", "user", "\ud800", "messages"])
async def test_half_of_a_surrogate_pair_is_no_text(world: World, path: str, field: str) -> None:
    body = {"prompt": "x"} if path == COMPLETIONS else {"messages": [USER]}
    value = [{"role": "user", "content": "x", "name": "\ud800"}] if field == "messages" else "\ud800"
    assert "surrogate" in assert_refused(await world.post(path, body | {field: value}), None)


@pytest.mark.parametrize("body", ["[]", "1", "null", '"x"'])
async def test_a_body_that_is_no_object(world: World, body: str) -> None:
    assert_refused(await world.post(COMPLETIONS, body.encode()), None, "invalid_request")


@pytest.mark.parametrize(
    ("content_type", "is_json"),
    [
        *((kind, False) for kind in ("application/x-www-form-urlencoded", "text/plain", "")),
        *((kind, True) for kind in ("application/json; charset=utf-8", "application/vnd.api+json")),
    ],
)
async def test_json_that_is_not_sent_as_json_is_told_how(world: World, content_type: str, is_json: bool) -> None:
    headers = {"content-type": content_type} if content_type else {}
    exchange = Exchange(world.app, "POST", COMPLETIONS, body=b'{"prompt": "x", "max_tokens": 1}', headers=headers)
    await exchange.end()
    if is_json:
        assert exchange.status == 200
    else:
        message = assert_refused(exchange, None, "unsupported_media_type", 415)
        assert "Content-Type: application/json" in message


async def test_a_prompt_that_just_fits_is_served_and_one_more_token_is_not() -> None:
    async with open_world(n_ctx=64) as world:
        assert (await world.complete("x" * 63).end()).json()["choices"][0]["finish_reason"] == "length"
        refused = await world.complete("x" * 64).end()
        message = assert_refused(refused, "prompt", "context_length_exceeded")
        assert "64" in message
        assert "63" in message
        error = refused.json()["error"]
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (64, 64)


# -- errors before any handler, or instead of one ----------------------------------------------------------------------


async def test_an_unknown_path_is_404(world: World) -> None:
    for method in ("GET", "POST"):
        message = assert_refused(await world.begin(method, "/v1/nowhere").end(), None, "unknown_url", 404)
        assert message == f"there is no {method} /v1/nowhere"


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
async def test_a_wrong_method_is_a_405_with_those_allowed(world: World, method: str, path: str, allowed: str) -> None:
    exchange = await world.begin(method, path).end()
    assert_refused(exchange, None, "method_not_allowed", 405)
    assert exchange.headers["allow"] == allowed


@pytest.mark.parametrize("depth", [500, 900, 980, 1000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
async def test_deeply_nested_json_is_refused_wherever_the_stack_ends(world: World, depth: int, opening: str) -> None:
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


def test_what_is_no_http_behind_or_inside_a_request_closes_the_connection_only(server: ServerProcess) -> None:
    with RawClient(server.port) as client:
        client.post(max_tokens=1)
        answer = client.answer()
        assert answer.status == 200
        answer.read()
        client.socket.sendall(b"NOT HTTP AT ALL\r\n\r\n")
        assert client.answer().status == 400
    with RawClient(server.port) as client:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.socket.sendall(head.encode() + b"not a length\r\n")
        assert client.answer().status == 400
    assert server.http.get("/health").status_code == 200
    assert "Traceback" not in server.log
