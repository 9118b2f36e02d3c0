"""The first request of its kind holds nobody up: whatever it needs is there when the server is ready.

Not by the clock, which a busy machine would decide: the server says what is made, imported, read or started later.
"""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyllmcancel.server.app import all_routes
from pyllmcancel.server.openapi.examples import EXAMPLES
from tests.support.http_process import ServerProcess
from tests.support.late_work import LATE
from tests.support.tiny_embedders import write_tiny_encoder

pytestmark = pytest.mark.long

# The server's folders are the installed package's; the tests' come after them.
PROGRAM = (
    f"import runpy, sys; sys.path.append({str(Path(__file__).parents[2])!r}); "
    "runpy.run_module('tests.support.late_work', run_name='__main__')"
)
PATIENCE = 90.0  # seconds, for two of a processor on a busy machine
ENDLESS = "/v1/events"

QUESTION = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{1,8}$"}}, "required": ["a"]}
PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PLAIN}}


def form(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


# What the examples of the OpenAPI page leave out.
COMPLETIONS: list[dict[str, Any]] = [
    {"grammar": "root ::= [a-z]+"},
    {"response_format": form(SCHEMA)},
    {"response_format": form(PLAIN)},
    {"response_format": {"type": "json_object"}},
    {"guided_regex": "[a-z]{1,8}"},
    {"guided_choice": ["yes", "no"]},
    {"n": 2, "best_of": 3, "logprobs": 2, "echo": True},
    {"min_tokens": 1, "ignore_eos": True, "logit_bias": {"5": 1}, "stop": ["x"]},
    {"prompt": ["one", [2, 3]]},
    {"prompt": "long " * 2_000},
    {"temperature": 1, "dry_multiplier": 0.5, "mirostat": 2, "seed": 1},
]
CHATS: list[dict[str, Any]] = [
    {"tools": [TOOL]},
    {"tools": [TOOL], "tool_choice": "required", "stream": True},
    {"response_format": form(SCHEMA), "stream": True},
    {"logprobs": True, "top_logprobs": 2, "stream": True},
    {"messages": [{"role": "nobody", "content": "hello"}]},
    {"messages": [{"role": "user", "content": "long " * 2_000}]},
]
Sent = tuple[str, str, dict[str, Any]]


def requests() -> Iterator[Sent]:
    """Every route, with every example; then each kind of constraint, of body and of error."""
    for route in all_routes(ui=True):
        path = re.sub(r"\{[^}]*\}", "x", route.path)  # type: ignore[attr-defined]
        examples = [example["value"] for example in EXAMPLES.get(path, {}).values()] or [{}]
        for method in route.methods:  # type: ignore[attr-defined]
            yield from ((method, path, {"json": body} if method == "POST" else {}) for body in examples)
    for body in COMPLETIONS:
        yield "POST", "/v1/completions", {"json": {"prompt": "hello", "max_tokens": 2} | body}
    for body in CHATS:
        yield "POST", "/v1/chat/completions", {"json": {"messages": QUESTION, "max_tokens": 2} | body}
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/completion", "/infill"):
        yield "POST", path, {"content": b"{", "headers": {"content-type": "application/json"}}
        yield "POST", path, {"content": b"no JSON"}
        yield "POST", path, {"json": {"prompt": 1.5, "messages": 5, "input": 5, "max_tokens": "x"}}
        yield "POST", path, {"content": b" " * (1 << 20)}
        yield "PUT", path, {}
    yield "POST", "/v1/embeddings", {"json": {"input": ["hello", "world"]}}
    yield "POST", "/v1/embeddings", {"json": {"input": "hello", "encoding_format": "base64"}}
    yield "GET", "/nothing", {}
    yield "GET", "/health", {"headers": {"x-request-id": "\x7f"}}
    yield "OPTIONS", "/v1/completions", {"headers": {"origin": "http://a", "access-control-request-method": "POST"}}


def walk(http: httpx.Client) -> None:
    for method, path, options in requests():
        with http.stream(method, path, timeout=PATIENCE, **options) as answer:
            assert answer.status_code != 500, (method, path, options)
            if path != ENDLESS:
                answer.read()


def late(server: ServerProcess) -> list[str]:
    server.signal(signal.SIGTERM)
    server.wait()
    return [line for line in server.log.splitlines() if line.startswith(LATE)]


@pytest.mark.parametrize("generates", [True, False], ids=["generates", "embeds"])
def test_nothing_is_made_at_a_first_request(long_model: Path, tmp_path: Path, *, generates: bool) -> None:
    model = long_model if generates else write_tiny_encoder(tmp_path / "encoder.gguf")
    options = ("--model", str(model), "--cors-origins", "*", "--max-body-mib", "1", "--store", str(tmp_path / "store"))
    with ServerProcess(*options, program=PROGRAM) as server:
        walk(server.started().http)
        found = late(server)
    assert found == []
