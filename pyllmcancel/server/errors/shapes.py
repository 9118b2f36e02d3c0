"""The API whose shape an error has: that of the requested endpoint, even if no handler saw the request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from pyllmcancel.server.errors.anthropic import AnthropicErrorAnswer, anthropic_error
from pyllmcancel.server.errors.llama import LlamaErrorAnswer, llama_error
from pyllmcancel.server.errors.openai import ErrorAnswer, openai_error

if TYPE_CHECKING:
    from starlette.types import Scope

    from pyllmcancel.server.errors.facts import ErrorFacts

MESSAGES = "/v1/messages"
# The first parts of paths. Paths without a version that OpenAI also has, such as /chat/completions, have OpenAI's
# errors.
LLAMA_SERVERS = frozenset(
    (
        *("apply-template", "completion", "completions", "detokenize", "embedding", "embeddings", "infill"),
        *("lora-adapters", "props", "rerank", "reranking", "slots", "tokenize"),
    )
)


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """The shape of an API's errors: the function that makes the body from the error and the request's id, and the
    body's type.

    `id_headers` are the names of the headers that carry the id.
    """

    word: Callable[[ErrorFacts, str], Mapping[str, Any]]
    answer: type
    id_headers: tuple[str, ...] = ("X-Request-Id",)


OPENAI = ErrorShape(openai_error, ErrorAnswer)
LLAMA = ErrorShape(llama_error, LlamaErrorAnswer)
ANTHROPIC = ErrorShape(anthropic_error, AnthropicErrorAnswer, ("X-Request-Id", "request-id"))


def shape_of_path(path: str) -> ErrorShape:
    if path == MESSAGES or path.startswith(f"{MESSAGES}/"):
        return ANTHROPIC
    return LLAMA if path.removeprefix("/").partition("/")[0] in LLAMA_SERVERS else OPENAI


def shape_of(scope: Scope) -> ErrorShape:
    """Return the shape for a path. Anthropic's clients send the version of its API, on paths that others have too."""
    return ANTHROPIC if "anthropic-version" in Headers(scope=scope) else shape_of_path(scope["path"])
