"""Answers that return a function with one name changed: their text is copied from the prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from statistics import fmean, median
from typing import Any

from bench.drafting.results import Result, other_answers
from bench.drafting.servers import LLAMA, OFF, ON, Bench, complete, drafts, in_turn, said
from bench.drafting.texts import Function, Purpose, functions
from bench.side_by_side.measurement import Subject
from pyllmcancel.bench.client import Ask, Client, Exchange

SOURCE = range(300, 1201)  # characters: three times as many fit into a slot's context
CHARACTERS = 3  # of source code, a token, or a few more
FENCE = "```"


@dataclass(frozen=True, slots=True)
class Edit:
    """A function, and the request to return it under another name.

    It was renamed once before: a small model copies what has been copied.
    """

    function: Function

    @property
    def names(self) -> tuple[str, str, str]:
        """The present name, that of the edit before, and the new one."""
        return self.function.name, f"{self.function.name}_2", f"{self.function.name}_3"

    def source(self, name: str) -> str:
        return self.function.source.replace(f"def {self.function.name}(", f"def {name}(", 1)

    @property
    def longest(self) -> int:
        """Tokens of the answer: a model that goes on and on is not measured."""
        return len(self.function.source) // CHARACTERS

    @property
    def prompt(self) -> str:
        """A completion: three versions, of which the last one is to be written."""
        versions = [f"Function `{name}`:\n{FENCE}python\n{self.source(name)}\n{FENCE}\n" for name in self.names]
        return "\n".join([*versions[:2], versions[2].partition(f"def {self.names[2]}(")[0]])

    @property
    def messages(self) -> list[dict[str, str]]:
        old, before, new = self.names
        asked = f"{FENCE}python\n{self.source(old)}\n{FENCE}\nRename `{old}` to `{before}`. Return the whole code."
        return [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": f"{FENCE}python\n{self.source(before)}\n{FENCE}"},
            {"role": "user", "content": f"Rename `{before}` to `{new}`. Return the whole code."},
        ]


@dataclass(frozen=True, slots=True)
class Form:
    """A form of the request, and the servers that are asked in this form; None: all."""

    name: str
    chat: bool = False
    prediction: bool = False
    servers: tuple[str, ...] | None = None

    def fields(self, edit: Edit) -> dict[str, Any]:
        ends = {"ignore_eos": False, "return_tokens": True}
        if not self.chat:
            return ends | {"stop": [f"\n{FENCE}"]}
        predicted = (
            {"prediction": {"type": "content", "content": edit.source(edit.names[2])}} if self.prediction else {}
        )
        return ends | {"messages": edit.messages} | predicted


CHAT_SERVERS = (OFF, ON, LLAMA)
COMPLETION = Form("completion")
PREDICTED = Form("chat, prediction", chat=True, prediction=True, servers=CHAT_SERVERS)
FORMS = (COMPLETION, Form("chat", chat=True, servers=CHAT_SERVERS), PREDICTED)


def edits(purpose: Purpose, count: int, seed: int) -> list[Edit]:
    found = [one for one in functions(purpose, random.Random(seed)) if len(one.source) in SOURCE]
    return [Edit(function) for function in found[:count]]


async def ask(subject: Subject, form: Form, edit: Edit, max_tokens: int | None = None) -> Exchange:
    client = Client(replace(subject.client.target, api="chat" if form.chat else "completions"))
    request_id, fields = subject.bench.new_id(), form.fields(edit)
    longest = max_tokens or edit.longest
    return await client.ask(Ask(prompt=edit.prompt, max_tokens=longest, request_id=request_id, fields=fields))


@dataclass(frozen=True, slots=True)
class Made:
    """An edit that a server has made; seconds from the first token on, and of the whole answer."""

    form: str
    file: str
    tokens: int
    decoding: float
    seconds: float
    copied: float
    drafted: int
    accepted: int
    said: Any


def made(form: Form, edit: Edit, exchange: Exchange) -> Made:
    assert exchange.ended_at is not None
    return Made(
        form=form.name,
        file=edit.function.file,
        tokens=exchange.n_tokens,
        decoding=exchange.ended_at - exchange.token_at[0],
        seconds=exchange.ended_at - exchange.began_at,
        copied=SequenceMatcher(None, edit.function.source, exchange.text, autojunk=False).ratio(),
        said=said(exchange),
        **drafts([exchange]),
    )


async def measure(bench: Bench, purpose: Purpose, *, count: int, seed: int) -> Result:
    """Each server makes the same edits, one after the other, in turn."""
    found: dict[tuple[str, str], list[Made]] = {}
    for turn, edit in enumerate(edits(purpose, count * len(FORMS), seed)):
        # Other functions for each form: what was computed for one form would help the next.
        form = FORMS[turn % len(FORMS)]
        for name, subject in in_turn(bench.take_part(form.servers), turn // len(FORMS)):
            answer = complete(await ask(subject, form, edit))
            found.setdefault((form.name, name), []).append(made(form, edit, answer))
            await subject.settle()
    return table(found, {name: bench.reference(name) for name in bench.subjects})


COLUMNS = (
    "form",
    "server",
    "answers",
    "tokens",
    "tokens/s",
    "times off",
    "whole answer, median s",
    "copied",
    "drafted",
    "accepted",
    "other answers",
)


def table(found: dict[tuple[str, str], list[Made]], reference: dict[str, str]) -> Result:
    rows = []
    for (form, name), answers in sorted(
        found.items(), key=lambda entry: [one.name for one in FORMS].index(entry[0][0])
    ):
        without, first = found.get((form, OFF)), found.get((form, reference[name]))
        rows.append(
            [
                *(form, name, len(answers), sum(one.tokens for one in answers), rate(answers)),
                rate(answers) / rate(without) if without else None,
                median([one.seconds for one in answers]),
                f"{100 * fmean(one.copied for one in answers):.0f} %",
                *(sum(one.drafted for one in answers), sum(one.accepted for one in answers)),
                other_answers(answers, first),
            ]
        )
    return Result("edits: a function is returned with another name", COLUMNS, rows, values_of(found))


def rate(answers: Sequence[Made]) -> float:
    """Return the tokens after the first, for each second that these took."""
    return sum(one.tokens - 1 for one in answers) / sum(one.decoding for one in answers)


def values_of(found: dict[tuple[str, str], list[Made]]) -> dict[str, list[dict[str, Any]]]:
    return {f"{form}: {name}": [asdict(one) for one in answers] for (form, name), answers in found.items()}
