"""How many greedy answers drafting changes: the same requests with and without, by the source of their drafts.

In a chain a request follows those that give it something to draft from. Several chains may run at once: then drafts of
one request meet the tokens of others in a step. Answers are compared token for token.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.drafting import edits, typing_along
from bench.drafting.results import Result, other_answers
from bench.drafting.servers import OFF, ON, Bench, complete, drafts, said
from bench.drafting.texts import Purpose
from bench.side_by_side.measurement import Subject
from pyllmcancel.bench.client import Exchange
from pyllmcancel.bench.prompts import WORDS

KEYS = 24  # of a chain that types
STYLES = (typing_along.PATIENT, typing_along.HURRIED, typing_along.HEALED)
TOKENS = 64
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "water"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
CONSTRAINED = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it is compared, and its counts of drafts."""

    said: Any
    drafted: int
    accepted: int


Chain = Callable[[Subject, int], Awaitable[list[Answer]]]


def answer_of(exchange: Exchange) -> Answer:
    return Answer(said(complete(exchange)), **drafts([exchange]))


async def measure(bench: Bench, purpose: Purpose, *, answers: int, lanes: int, seed: int) -> Result:
    """Ask for as many answers on each of the two servers, a quarter of them for each source."""
    subjects = bench.take_part((OFF, ON))
    each = -(-answers // 4)
    for subject in subjects.values():
        await constrained(subject, -1)  # compiles the schema while nothing else computes
    chains = await chains_of(next(iter(subjects.values())), purpose, each=each, seed=seed)
    rows, values = [], {}
    for source, (chain, count) in chains.items():
        found = {name: await in_lanes(subject, chain, count, lanes) for name, subject in subjects.items()}
        for name, answers_found in found.items():
            counts = [sum(getattr(one, what) for one in answers_found) for what in ("drafted", "accepted")]
            rows.append([source, name, len(answers_found), *counts, other_answers(answers_found, found.get(OFF))])
        values[source] = {name: [asdict(one) for one in answers_found] for name, answers_found in found.items()}
    columns = ("source of drafts", "server", "answers", "drafted", "accepted", "other answers")
    return Result(f"exactness: greedy answers, {lanes} at once", columns, rows, values)


async def chains_of(subject: Subject, purpose: Purpose, *, each: int, seed: int) -> dict[str, tuple[Chain, int]]:
    """Return the chain of each source, and how many are needed for `each` answers."""
    waited = [sum(map(style.waits, range(1, KEYS + 1))) for style in STYLES]
    n_typed = -(-each * len(STYLES) // sum(waited))
    typings = await typing_along.recorded(subject, purpose, places=n_typed, keys=KEYS, seed=seed)
    some = edits.edits(purpose, 2 * each, seed)

    async def typed(subject: Subject, number: int) -> list[Answer]:
        strokes = await typing_along.typed(subject, typings[number], STYLES[number % len(STYLES)])
        return [Answer(one.said, one.drafted, one.accepted) for one in strokes]

    async def copied(subject: Subject, number: int) -> list[Answer]:
        edit = some[number % len(some)]
        return [answer_of(await edits.ask(subject, edits.COMPLETION, edit, max_tokens=TOKENS))]

    async def predicted(subject: Subject, number: int) -> list[Answer]:
        edit = some[-1 - number % len(some)]
        return [answer_of(await edits.ask(subject, edits.PREDICTED, edit, max_tokens=TOKENS))]

    return {
        "answers before, cancelled or finished": (typed, len(typings)),
        "the prompt and the answer": (copied, each),
        "prediction": (predicted, each),
        "answers before and the prompt, JSON schema": (constrained, -(-each // len(CONSTRAINTS))),
    }


CONSTRAINTS: tuple[dict[str, Any], ...] = ({}, {"response_format": CONSTRAINED}, {"response_format": CONSTRAINED})


async def constrained(subject: Subject, number: int) -> list[Answer]:
    """One prompt without the schema, and twice with it: the answers before go along it in part, and in full."""
    prompt = people(random.Random(f"people {number}"))
    fields = [{"ignore_eos": False, "return_tokens": True} | constraint for constraint in CONSTRAINTS]
    return [answer_of(await subject.start(prompt, TOKENS, fields=some).ended()) for some in fields]


def people(chance: random.Random) -> str:
    """Return a prompt of some objects that the schema allows, and the beginning of a line for one more."""
    likes = SCHEMA["properties"]["likes"]["items"]["enum"]
    some = [
        {
            "name": chance.choice(WORDS).title(),
            "age": chance.randrange(100),
            "likes": chance.sample(likes, chance.randrange(1, 3)),
        }
        for _ in range(4)
    ]
    return "\n".join(["People:", *map(json.dumps, some), ""])


async def in_lanes(subject: Subject, chain: Chain, count: int, lanes: int) -> list[Answer]:
    """Run `count` chains, `lanes` of them at once; return all their answers in the order of the chains' numbers."""
    waiting = list(reversed(range(count)))
    found: dict[int, Sequence[Answer]] = {}

    async def lane() -> None:
        while waiting:
            number = waiting.pop()
            found[number] = await chain(subject, number)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return [answer for number in sorted(found) for answer in found[number]]
