"""The targets of the fuzzers, from stable entry points: each target takes bytes, and raises if something is not as it
should be.

A target refuses politely whatever the code it calls refuses politely; everything else that is raised is a find.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pyllmcancel.chat.template import ChatTemplate
from pyllmcancel.constraints.guidance import Guidance, json_rule
from pyllmcancel.errors import ConstraintError, InvalidRequestError
from pyllmcancel.requests.detokenizer import Detokenizer
from tests.support.fake_native import Model as FakeModel
from tests.support.http_asgi import Exchange
from tests.support.http_world import World

PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/completion",
    "/infill",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/embeddings",
    "/embeddings",
    "/v1/rerank",
    "/v1/messages",
    "/v1/responses",
)
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "größer?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "{}", "tool_call_id": "1"},
]
# A server that answers so has failed: what it refuses it refuses with 4xx. Not served here: 501; out of time: 504.
NOT_MEANT = range(500, 600)
MEANT = {501, 503, 504}


def bodies(data: bytes) -> None:
    """A request with this body, to the endpoint that the first byte names."""
    if data:
        exchange(PATHS[data[0] % len(PATHS)], data[1:], {})


def sessions(data: bytes) -> None:
    """A request with these bytes as its names, and a look at them afterwards."""
    name = data.decode("latin-1").replace("\r", "").replace("\n", "").replace("\0", "")
    body = json.dumps({"prompt": "a", "max_tokens": 1, "session_id": name, "supersede": name}).encode()
    exchange("/v1/completions", body, {})
    exchange("/v1/completions", b'{"prompt": "a", "max_tokens": 1}', {"X-Session-Id": name, "X-Request-Id": name})


def templates(data: bytes) -> None:
    """A chat template from a model file."""
    template = ChatTemplate(data.decode("utf-8", "replace"), "<s>", "</s>")
    try:
        form = template.apply({"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "f"}}]})
    except InvalidRequestError:
        return
    finally:
        template.close()
    assert isinstance(form.prompt, str)


def schemas(data: bytes) -> None:
    """A JSON schema of a response format, compiled, and asked for a mask."""
    try:
        schema = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(schema, dict):
        return
    try:
        guidance().check_schema(schema, "response_format")
        constraint = guidance().compile(f"start: {json_rule(schema)}\n", "response_format").new()
        assert constraint.mask().any()
    except (InvalidRequestError, ConstraintError):
        return


def grammars(data: bytes) -> None:
    """A GBNF grammar of a request, in the compiled core."""
    from pyllmcancel import _native
    from pyllmcancel.errors import UsageError
    from pyllmcancel.sampling import SamplingParams

    try:
        sampling = SamplingParams(grammar=data.decode("utf-8", "replace"), temperature=0.0)
        _native.Sampler(real_model(), sampling)
    except (InvalidRequestError, UsageError):
        return


def utf8(data: bytes) -> None:
    """Any bytes of tokens, cut anywhere: the text is that of all bytes together, and stop strings never leak."""
    width = 1 + data[0] % 7 if data else 1
    stop = ("ab", "é") if data and data[0] & 8 else ()
    pieces = [data[at : at + width] for at in range(1, len(data), width)]
    detokenizer = Detokenizer(pieces.__getitem__, stop)
    text = "".join(detokenizer.feed(index) for index in range(len(pieces))) + detokenizer.flush()
    whole = data[1:].decode("utf-8", "replace")
    ends = [whole.find(word) for word in stop if word in whole]
    assert text == (whole[: min(ends)] if ends else whole)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bodies": bodies,
    "grammars": grammars,
    "schemas": schemas,
    "sessions": sessions,
    "templates": templates,
    "utf8": utf8,
}


@cache
def guidance() -> Guidance:
    model: Any = FakeModel()  # it has all that is asked for
    return Guidance(model)


@cache
def real_model() -> Any:
    from pyllmcancel import _native
    from tests.support.tiny_models import write_tiny_llama

    folder = tempfile.mkdtemp()
    return _native.Model.load(write_tiny_llama(Path(folder) / "tiny.gguf"))


@cache
def server() -> tuple[asyncio.Runner, World]:
    runner = asyncio.Runner()

    async def make() -> World:
        return World(request_timeout=2.0)

    return runner, runner.run(make())


def close() -> None:
    """Stop the server, if one was made."""
    if server.cache_info().currsize:
        runner, world = server()
        runner.run(world.close())
        runner.close()
        server.cache_clear()


def exchange(path: str, body: bytes, headers: dict[str, str]) -> None:
    """One request to a whole server over the fake engine: it answers, and does not fail."""
    runner, world = server()

    async def ask() -> Exchange:
        headers_sent = {"content-type": "application/json"} | headers
        return await Exchange(world.app, "POST", path, body=body, headers=headers_sent).end()

    answer = runner.run(ask())
    assert answer.status not in NOT_MEANT or answer.status in MEANT, (answer.status, answer.body)
    if answer.status >= 400:
        assert "error" in answer.json()
