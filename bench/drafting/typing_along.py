"""A person types along a suggestion, and gets a whole new one at each key.

The suggestion at the beginning is recorded once, from the first server, so that all servers see the same keys. At a
key the prompt is the text before the cursor and what has been typed; as often as not it ends within a token of the
suggestion.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.drafting.results import Result, other_answers
from bench.drafting.servers import LLAMA, OFF, Bench, complete, drafts, in_turn, said
from bench.drafting.texts import Place, Purpose, functions, place_in
from bench.side_by_side.measurement import Subject
from pyllmcancel.bench.client import Call, Exchange
from pyllmcancel.bench.percentiles import distribution

TOKENS = 40
PAUSE, SPREAD, SHORTEST = 0.12, 0.5, 0.03  # seconds between keys: the median, the logarithm's deviation, the least
WAITS_AT = 3  # a hurried person reads the suggestion at each third key


@dataclass(frozen=True, slots=True)
class Typing:
    """A place, the suggestion that is typed, its characters at which a token ends, and the pauses after keys."""

    place: Place
    suggestion: str
    token_ends: frozenset[int]
    pauses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Style:
    """A way to type."""

    title: str
    hurried: bool = False  # two keys of three come before the suggestion is there, and cancel it; else none does
    temperature: float = 0.0  # with a temperature, each key has a seed of its own, the same for every server
    # Prompts are healed: their last word is taken back, and the answer begins with it. llama-server has no healing.
    healing: bool = False

    def fields(self, key: int) -> dict[str, Any]:
        sampled = {"temperature": self.temperature, "seed": 1000 + key} if self.temperature else {}
        healed = {"token_healing": True} if self.healing else {}
        return sampled | healed | {"return_tokens": True}

    def waits(self, key: int) -> bool:
        return not self.hurried or key % WAITS_AT == 0


PATIENT = Style("typing: each key comes after the whole suggestion")
HURRIED = Style(
    "typing in a hurry, with token healing: two keys of three cancel the suggestion before", hurried=True, healing=True
)
HEALED = Style("typing with token healing: each key comes after the whole suggestion", healing=True)
SAMPLED = Style("typing, temperature 0.8, a seed for each key", temperature=0.8)


@dataclass(frozen=True, slots=True)
class Stroke:
    """One key whose suggestion was waited for."""

    file: str
    key: int
    in_token: bool
    seconds: float
    said: Any
    drafted: int
    accepted: int
    cached: int | None


async def measure(bench: Bench, style: Style, purpose: Purpose, *, places: int, keys: int, seed: int) -> Result:
    """All servers type at the same places, in turn."""
    subjects = bench.take_part()
    typings = await recorded(next(iter(subjects.values())), purpose, places=places, keys=keys, seed=seed)
    strokes: dict[str, list[Stroke]] = {name: [] for name in subjects}
    for turn, typing in enumerate(typings):
        for name, subject in in_turn(subjects, turn):
            strokes[name] += await typed(subject, typing, style)
            await subject.settle()
    return table(style, strokes, {name: bench.reference(name) for name in subjects})


async def recorded(subject: Subject, purpose: Purpose, *, places: int, keys: int, seed: int) -> list[Typing]:
    chance = random.Random(seed)
    typings: list[Typing] = []
    for function in functions(purpose, chance):
        if len(typings) == places:
            break
        place = place_in(function, chance)
        suggestion = complete(await subject.start(place.prefix, TOKENS, stream=False, fields=PATIENT.fields(0)).ended())
        pauses = tuple(max(SHORTEST, PAUSE * chance.lognormvariate(0.0, SPREAD)) for _ in range(keys))
        if len(suggestion.text) >= keys:
            ends = await token_ends(subject, suggestion.tokens)
            typings.append(Typing(place, suggestion.text[:keys], ends, pauses))
    return typings


async def token_ends(subject: Subject, tokens: Sequence[int]) -> frozenset[int]:
    """Return the number of characters up to the end of each token."""
    texts = [
        await subject.client.fetch_json("POST", "/detokenize", {"tokens": list(tokens[: n + 1])})
        for n in range(len(tokens))
    ]
    return frozenset(len(text["content"]) for text in texts)


async def typed(subject: Subject, typing: Typing, style: Style) -> list[Stroke]:
    """Type the suggestion; returns when the last key's answer is complete."""
    supersede = subject.bench.new_key()
    fields = style.fields(0)
    complete(await subject.start(typing.place.prefix, TOKENS, stream=False, supersede=supersede, fields=fields).ended())
    found: list[Stroke] = []
    older: Call | None = None
    for key, pause in enumerate(typing.pauses, 1):
        prompt = typing.place.prefix + typing.suggestion[:key]
        call = subject.start(prompt, TOKENS, stream=False, supersede=supersede, fields=style.fields(key))
        await asyncio.sleep(0)
        if older is not None:
            older.cut()
        typed_on = asyncio.create_task(asyncio.sleep(pause))
        if style.waits(key):
            found.append(stroke(typing, key, complete(await call.ended())))
        await typed_on
        older = call
    if older is not None:
        await older.ended()
    return found


def stroke(typing: Typing, key: int, exchange: Exchange) -> Stroke:
    assert exchange.ended_at is not None
    return Stroke(
        file=typing.place.file,
        key=key,
        in_token=key not in typing.token_ends,
        seconds=exchange.ended_at - exchange.began_at,
        said=said(exchange),
        cached=exchange.timings.get("cache_n"),
        **drafts([exchange]),
    )


COLUMNS = (
    "server",
    "keys",
    "median ms",
    "p99 ms",
    "keys in a token",
    "their median ms",
    "times sooner than off",
    "than llama-server",
    "drafted",
    "accepted",
    "other answers",
)


def table(style: Style, strokes: dict[str, list[Stroke]], reference: dict[str, str]) -> Result:
    rows = []
    bases = [distribution([one.seconds for one in strokes.get(name, ())], 1e3)["p50"] for name in (OFF, LLAMA)]
    for name, found in strokes.items():
        times = distribution([one.seconds for one in found], 1e3)
        in_token = distribution([one.seconds for one in found if one.in_token], 1e3)
        sooner = [base / times["p50"] if base and times["p50"] else None for base in bases]
        drafted, accepted = sum(one.drafted for one in found), sum(one.accepted for one in found)
        differing = other_answers(found, strokes.get(reference[name]))
        spread = [times["p50"], times["p99"], in_token["n"], in_token["p50"]]
        rows.append([name, len(found), *spread, *sooner, drafted, accepted, differing])
    return Result(style.title, COLUMNS, rows, {name: [asdict(one) for one in found] for name, found in strokes.items()})
