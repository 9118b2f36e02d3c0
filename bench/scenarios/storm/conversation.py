"""The requests of a long soak on a model that writes English: chats, tools, schemas, grammars and plain text."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from bench.scenarios.storm.palette import (
    CONSTRAINED,
    GREEDY,
    Body,
    Kind,
    Palette,
    both,
    completion,
    rotations,
)

DOCS = Path(__file__).parents[3] / "docs"
N_PROMPTS = 4
N_TEXTS = 24  # of a request for vectors that is to be cut
SHORT_ANSWER = 24  # tokens
ENDLESS_ANSWER = 700  # tokens of one that is to be cut
CALLS = 40  # tokens of an answer that calls a tool
# Characters: a long prompt and a long answer fit in a slot's 1,536 cells.
LONGEST = 1600
# These requests may be cut. A known answer would come before its cut.
ENDLESS: Body = {**GREEDY, "speculative.n_max": 0}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {field: {"type": "string", "maxLength": 12}},
                "required": [field],
                "additionalProperties": False,
            },
        },
    }
    for name, description, field in (
        ("look_up", "Look a word up in the dictionary.", "word"),
        ("open_page", "Open a page of the manual.", "page"),
    )
]


def messages(prompt: str) -> list[Body]:
    return [{"role": "user", "content": f"Explain this in one sentence:\n\n{prompt}"}]


def turns(prompt: str) -> list[Body]:
    """A conversation whose third turn is asked for."""
    return [
        {"role": "system", "content": "You are a technical writer who answers briefly."},
        *messages(prompt),
        {"role": "assistant", "content": "It describes how a server treats its clients."},
        {"role": "user", "content": "Which word of it is the most important one?"},
    ]


def with_tools(prompt: str) -> Body:
    return GREEDY | {"ignore_eos": False, "messages": messages(prompt), "tools": TOOLS, "tool_choice": "required"}


def seeded(prompt: str) -> Body:
    return {"messages": turns(prompt), "temperature": 0.8, "seed": 7}


CUT: tuple[Kind, ...] = tuple(
    replace(kind, n_endless=ENDLESS_ANSWER)
    for kind in (
        *both("completions", "/v1/completions", lambda text: ENDLESS | {"prompt": text}),
        Kind("completions, n = 2", "/v1/completions", lambda text: ENDLESS | {"prompt": text, "n": 2}),
        *both(
            "chat", "/v1/chat/completions", lambda text: ENDLESS | {"messages": messages(text)}, n_tokens=SHORT_ANSWER
        ),
        *both("completion", "/completion", lambda text: ENDLESS | {"prompt": text}, "n_predict"),
    )
)
# With drafts, as by default.
WHOLE: tuple[Kind, ...] = (
    *both("completions, drafts", "/v1/completions", completion, n_tokens=SHORT_ANSWER),
    *both("chat, seeded", "/v1/chat/completions", seeded, n_tokens=SHORT_ANSWER),
    *both("chat, tools", "/v1/chat/completions", with_tools, n_tokens=CALLS),
    Kind("responses", "/v1/responses", lambda text: {"input": messages(text), "temperature": 0.0}, "max_output_tokens"),
    Kind("messages", "/v1/messages", lambda text: {"messages": turns(text), "temperature": 0.0}),
    *CONSTRAINED,
)
TELLING = Kind(
    "completion, progress",
    "/completion",
    lambda text: ENDLESS | {"prompt": text, "return_progress": True},
    "n_predict",
    stream=True,
    n_endless=ENDLESS_ANSWER,
)
VERBOSE = Kind(
    "completion, probabilities",
    "/completion",
    lambda text: ENDLESS | {"prompt": text, "n_probs": 100},
    "n_predict",
    stream=True,
    n_endless=ENDLESS_ANSWER,
)


def english() -> str:
    return "\n\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))


def excerpt(text: str, chance: random.Random, shortest: int, longest: int) -> str:
    begin = text.index(" ", chance.randrange(len(text) - 2 * longest)) + 1
    return text[begin : begin + chance.randrange(shortest, longest)]


def conversing(chance: random.Random, _n_ctx: int) -> Palette:
    """For a model that writes English."""
    return Palette((*CUT, *WHOLE, VERBOSE), CUT, (TELLING,), *texts(chance), verbose=(VERBOSE,))


def embedding(chance: random.Random, _n_ctx: int) -> Palette:
    """For the server of vectors beside it."""
    short = Kind("embeddings", "/v1/embeddings", lambda text: {"input": [text, text[: len(text) // 2]]}, limit=None)
    many = Kind("embeddings, many", "/v1/embeddings", lambda text: {"input": rotations(text, N_TEXTS)}, limit=None)
    return Palette((short,), (many,), (), *texts(chance))


def texts(chance: random.Random) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Short prompts and long ones."""
    text = english()
    return (
        tuple(excerpt(text, chance, 60, 400) for _ in range(N_PROMPTS)),
        tuple(excerpt(text, chance, LONGEST // 2, LONGEST) for _ in range(N_PROMPTS)),
    )
