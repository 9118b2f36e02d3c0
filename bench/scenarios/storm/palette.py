"""The requests of the storm's clients: every endpoint, with prompts whose answers can be compared word for word."""

from __future__ import annotations

import bisect
import heapq
import inspect
import json
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Body = dict[str, Any]
N_PROMPTS = 6
ANSWER = 12  # tokens of an answer that is waited for
LONG_ANSWER = 1500  # of one that its client does not wait for, after a short prompt
LONG_PROMPTS_ANSWER = 200  # after a long one
MANY = 40  # texts of a request for vectors that is to be cut
SOURCE = "\n".join(inspect.getsource(module) for module in (textwrap, heapq, bisect, json.decoder))
UNDRAFTED: Body = {"speculative.n_max": 0}
GREEDY: Body = {"temperature": 0.0, "ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "done": {"type": "boolean"}},
    "required": ["name", "done"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to ask: its endpoint, its body for a prompt, the name of its tokens' limit, and the limit of an answer that
    is waited for.
    """

    name: str
    path: str
    body: Callable[[str], Body]
    limit: str | None = "max_tokens"
    stream: bool = False
    n_tokens: int = ANSWER
    n_endless: int | None = None  # of one that is to be cut

    def ask(self, prompt: str, n_tokens: int | None = None) -> Body:
        limit = {} if self.limit is None else {self.limit: n_tokens or self.n_tokens}
        return self.body(prompt) | limit | {"stream": self.stream}

    def ask_endless(self, prompt: str, *, known: bool) -> Body:
        """Return the body of a request that takes longer than its client waits: without drafts from past answers."""
        body = self.ask(prompt, self.n_endless or (LONG_ANSWER if known else LONG_PROMPTS_ANSWER))
        return body if self.limit is None else body | UNDRAFTED


def both(
    name: str, path: str, body: Callable[[str], Body], limit: str = "max_tokens", n_tokens: int = ANSWER
) -> list[Kind]:
    return [
        Kind(name, path, body, limit, n_tokens=n_tokens),
        Kind(f"{name}, streamed", path, body, limit, stream=True, n_tokens=n_tokens),
    ]


def completion(prompt: str) -> Body:
    return GREEDY | {"prompt": prompt}


def chat(prompt: str) -> Body:
    return GREEDY | {"messages": [{"role": "user", "content": prompt}]}


def idle(prompt: str) -> Body:
    return completion(prompt) | {"priority": "idle"}


def infill(prompt: str) -> Body:
    middle = len(prompt) // 2
    return GREEDY | {"input_prefix": prompt[:middle], "input_suffix": prompt[middle:]}


GENERATING: tuple[Kind, ...] = (
    *both("completions", "/v1/completions", completion),
    *both("completions, idle", "/v1/completions", idle),
    Kind("completions, n = 2", "/v1/completions", lambda prompt: completion(prompt) | {"n": 2}),
    Kind("completions, logprobs", "/v1/completions", lambda prompt: completion(prompt) | {"logprobs": 2}, stream=True),
    *both("chat", "/v1/chat/completions", chat),
    *both("completion", "/completion", completion, "n_predict"),
    *both("infill", "/infill", infill, "n_predict"),
)
# These report the progress of their prompts, too, in which they are cut.
TELLING = Kind(
    "completion, progress",
    "/completion",
    lambda text: completion(text) | {"return_progress": True},
    "n_predict",
    stream=True,
)
# These end by themselves, so they are not cut late.
CONSTRAINED: tuple[Kind, ...] = (
    Kind(
        "chat, JSON schema",
        "/v1/chat/completions",
        lambda prompt: {
            **chat(prompt),
            "ignore_eos": False,
            "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        },
    ),
    Kind(
        "completion, grammar",
        "/completion",
        lambda prompt: {**completion(prompt), "ignore_eos": False, "grammar": 'root ::= ("yes" | "no")+ "."'},
        "n_predict",
    ),
)
# Requests that compute nothing: path, and body if there is one.
LOOKING: tuple[tuple[str, Body | None], ...] = (
    ("/tokenize", {"content": SOURCE[:600], "with_pieces": True}),
    ("/detokenize", {"tokens": [*range(300, 360)]}),
    ("/apply-template", {"messages": [{"role": "user", "content": "Hello"}]}),
    ("/props", None),
    ("/slots", None),
    ("/health", None),
    ("/metrics", None),
    ("/v1/models", None),
    ("/v1/requests", None),
    ("/v1/steps?last=20", None),
)


@dataclass(frozen=True, slots=True)
class Palette:
    """The kinds of request for one server."""

    kinds: tuple[Kind, ...]  # their answers are waited for
    # Clients leave these: with a long prompt or a long answer they take longer than anybody waits.
    endless: tuple[Kind, ...]
    telling: tuple[Kind, ...]  # those of them that stream, from their prompt on
    prompts: tuple[str, ...]
    long_prompts: tuple[str, ...]

    def questions(self) -> list[tuple[Kind, str]]:
        return [(kind, prompt) for kind in self.kinds for prompt in self.prompts]


def excerpt(chance: random.Random, shortest: int, longest: int) -> str:
    """Some lines of Python: what the packaged model knows."""
    begin = chance.randrange(len(SOURCE) - longest)
    return SOURCE[begin : begin + chance.randrange(shortest, longest)]


def generating(chance: random.Random, n_ctx: int) -> Palette:
    """For a model that generates; long prompts take several steps, and fit in its context."""
    prompts = tuple(excerpt(chance, 40, 400) for _ in range(N_PROMPTS))
    return Palette(GENERATING + CONSTRAINED, GENERATING, (TELLING,), prompts, long_prompts(chance, n_ctx))


def pooling(chance: random.Random, n_ctx: int) -> Palette:
    """For a model that makes vectors."""
    short = Kind("embeddings", "/v1/embeddings", lambda text: {"input": [text, text[: len(text) // 2]]}, limit=None)
    many = Kind("embeddings, many", "/v1/embeddings", lambda text: {"input": rotations(text, MANY)}, limit=None)
    prompts = tuple(excerpt(chance, 40, 400) for _ in range(N_PROMPTS))
    return Palette((short,), (many,), (), prompts, long_prompts(chance, n_ctx))


def long_prompts(chance: random.Random, n_ctx: int) -> tuple[str, ...]:
    longest = min(3 * n_ctx // 2, 6000)
    return tuple(excerpt(chance, longest // 2, longest) for _ in range(N_PROMPTS))


def rotations(text: str, count: int) -> list[str]:
    """Texts as long as `text`, of which none begins like another."""
    size = len(text) // count
    return [text[i * size :] + text[: i * size] for i in range(count)]
