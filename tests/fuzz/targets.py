"""The targets of the fuzzers, from stable entry points: each target takes bytes, and raises if something is not as it
should be.

A target refuses politely whatever the code it calls refuses politely; everything else that is raised is a find.
"""

import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from pyllmcancel.chat.helper_process import Functions
from pyllmcancel.constraints.bounded import BoundedGuidance, NamedSchema
from pyllmcancel.constraints.guidance import Guidance
from pyllmcancel.errors import ConstraintError, InvalidRequestError
from pyllmcancel.requests.detokenizer import Detokenizer
from tests.fuzz.answers import answers
from tests.fuzz.files import prefix_files, presets
from tests.fuzz.serving import close as close_serving
from tests.fuzz.serving import serving
from tests.support.fake_native import Model as FakeModel

__all__ = ["JSON_HEADS", "TARGETS", "close"]

PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/completion", "/infill", "/tokenize", "/detokenize"),
    *("/apply-template", "/v1/embeddings", "/embeddings", "/v1/rerank", "/v1/messages", "/v1/responses"),
)
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "größer?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "{}", "tool_call_id": "1"},
]
TEMPLATE_SECONDS = 1.0  # of processor time
USER = {"role": "user", "content": "größer?"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def bodies(data: bytes) -> None:
    """A request with this body, to the endpoint that the first byte names."""
    if data:
        serving().exchange("POST", PATHS[data[0] % len(PATHS)], data[1:])


def items(data: bytes) -> None:
    """An item, or several, of the input of ``/v1/responses``, after a message of the user's."""
    given = value_of(data)
    sent = given if isinstance(given, list) else [given]
    body = {"input": [USER, *sent], "max_output_tokens": 1, "tools": [TOOL]}
    serving().exchange("POST", "/v1/responses", json.dumps(body).encode())


def blocks(data: bytes) -> None:
    """A block, or several, of a message to ``/v1/messages``: the model's, if its first byte is odd, or the user's."""
    if not data:
        return
    given = value_of(data[1:])
    sent = given if isinstance(given, list) else [given]
    messages = [USER, {"role": "assistant" if data[0] % 2 else "user", "content": sent}, USER]
    body = {"messages": messages, "max_tokens": 1, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
    path = "/v1/messages/count_tokens" if data[0] % 8 == 7 else "/v1/messages"
    serving().exchange("POST", path, json.dumps(body).encode())


def value_of(data: bytes) -> Any:
    """The value of a JSON text; a text that is none stands for itself."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def sessions(data: bytes) -> None:
    """A request with these bytes as its names, and a look at them afterwards."""
    name = data.decode("latin-1").replace("\r", "").replace("\n", "").replace("\0", "")
    body = json.dumps({"prompt": "a", "max_tokens": 1, "session_id": name, "supersede": name}).encode()
    serving().exchange("POST", "/v1/completions", body)
    names = {"X-Session-Id": name, "X-Request-Id": name}
    serving().exchange("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}', names)


def templates(data: bytes) -> None:
    """A chat template from a model file, in this process instead of the helper's."""
    if not data:
        return  # a model without a template has ChatML's
    functions = Functions()
    tools = [{"type": "function", "function": {"name": "f"}}]
    with limited(TEMPLATE_SECONDS):
        try:
            functions.open_template(data.decode("utf-8", "replace"), "<s>", "</s>", "")
            form = functions.apply_template({"messages": MESSAGES, "tools": tools, "tool_schemas": {}})
        except (InvalidRequestError, MemoryError):
            return
    assert isinstance(json.loads(form)["prompt"], str)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Make everything that takes longer fail as if there were no memory for it."""

    def end(*_: object) -> NoReturn:
        raise MemoryError

    before = signal.signal(signal.SIGPROF, end)
    # Again and again: the compiled core renders a template many times.
    signal.setitimer(signal.ITIMER_PROF, seconds, seconds / 10)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)


def schemas(data: bytes) -> None:
    """A JSON schema of a response format, compiled as a server compiles it, and asked for a mask."""
    schema = value_of(data)
    if not isinstance(schema, dict):
        return
    try:
        assert guidance().compile(NamedSchema(schema, "response_format")).new().mask().any()
    except (InvalidRequestError, ConstraintError):
        return


def grammars(data: bytes) -> None:
    """A GBNF grammar of a request, compiled as a server compiles it.

    ``tests/fuzz/native/grammars.cpp`` reads the same inputs, and follows the grammar by the bytes after a zero.
    """
    from pyllmcancel import _native
    from pyllmcancel.errors import UsageError
    from pyllmcancel.sampling import SamplingParams

    try:
        sampling = SamplingParams(grammar=data.partition(b"\0")[0].decode("utf-8", "replace"), temperature=0.0)
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
    target.__name__: target
    for target in (
        *(answers, blocks, bodies, grammars, items, prefix_files),
        *(presets, schemas, sessions, templates, utf8),
    )
}
# The targets whose inputs are JSON, and the number of bytes before it.
JSON_HEADS = {"blocks": 1, "bodies": 1, "items": 0, "prefix_files": 0, "schemas": 0}


@cache
def guidance() -> BoundedGuidance:
    model: Any = FakeModel()  # it has all that is asked for
    return BoundedGuidance(Guidance(model))


def close() -> None:
    close_serving()
    if guidance.cache_info().currsize:
        guidance().close()
        guidance.cache_clear()


@cache
def real_model() -> Any:
    from pyllmcancel import _native
    from tests.support.tiny_models import write_tiny_llama

    folder = tempfile.mkdtemp()
    return _native.Model.load(write_tiny_llama(Path(folder) / "tiny.gguf"))
