"""``python -m bench.repetitions --url URL --out FILE``: looks for false alarms of `repetition_limit`.

Has a server answer questions, without the limit, and keeps the answers in FILE; and tokenizes files, as if they
were answers. Then it looks at all tokens as the engine does, and shows where it would have ended an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import httpx

from pyllmcancel._native import Model
from pyllmcancel.engine.repetition import EVERY, period_of

FORMS = (
    "Write a short story about {}.",
    "Write a Python function about {}, with tests.",
    "Explain {} to a child, step by step.",
    "List 40 facts about {}.",
    "Make a table in Markdown with figures about {}.",
    "Write a poem about {} in which each stanza has the same refrain.",
    "Write JSON with 30 records about {}.",
    "Write the HTML of a page about {}.",
    "Draw {} in ASCII art.",
    "Write a dialogue of two people about {}.",
)
TOPICS = (
    *("rain", "a chess board", "prime numbers", "sorting", "whales", "the moon", "bread", "trains", "the number zero"),
    *("a market", "spreadsheets", "bees", "a lighthouse", "music", "multiplication", "rivers", "a castle", "time"),
    *("glass", "a robot", "gravity", "maps", "winter", "a garden", "volcanoes", "coffee", "the alphabet", "bridges"),
    *("a library", "dragons", "matrices", "elections", "a marathon", "clocks", "the desert", "languages", "salt"),
    *("a spider", "oceans", "dice"),
)
# Files that are text, a line of which people might have a model write.
KINDS = ("py", "pyi", "c", "h", "cpp", "js", "css", "html", "json", "csv", "xml", "svg", "md", "po", "txt", "sh")


def kept_in(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


async def answers(url: str, out: Path, n: int, at_once: int, max_tokens: int) -> AsyncIterator[dict[str, Any]]:
    """Yield answers: those in `out`, and further ones, which are added there."""
    kept = kept_in(out)
    for one in kept[:n]:
        yield one
    numbered = list(enumerate(form.format(topic) for _ in range(3) for topic, form in product(TOPICS, FORMS)))
    asked = iter(numbered[len(kept) : n])
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=3_600.0) as client:

        async def ask(seed: int, question: str) -> dict[str, Any]:
            messages = [{"role": "user", "content": question}]
            body = {"messages": messages, "seed": seed, "max_tokens": max_tokens, "return_tokens": True}
            async with gate:
                answered = await client.post("/v1/chat/completions", json=body)
            choice = answered.raise_for_status().json()["choices"][0]
            return {"name": question, "text": choice["message"]["content"], "tokens": choice["tokens"]}

        with out.open("a", encoding="utf-8") as file:
            for next_one in asyncio.as_completed([ask(seed, question) for seed, question in asked]):
                one = await next_one
                file.write(json.dumps(one) + "\n")
                file.flush()
                yield one


def texts(folders: list[Path], n: int) -> Iterator[tuple[Path, str]]:
    """Yield as many files of each kind, in a fixed order."""
    each = -(-n // len(KINDS))
    for kind in KINDS:
        found = (path for folder in folders for path in sorted(folder.rglob(f"*.{kind}")))
        suitable = (path for path in found if path.is_file() and 2_000 < path.stat().st_size < 200_000)
        for path in islice(suitable, 0, 20 * each, 20):
            yield path, path.read_text("utf-8", "replace")


def alarm(tokens: list[int], limit: int) -> tuple[int, int] | None:
    """Return the number of tokens at which an answer ends, and its period; None if it is not ended."""
    looks = range(EVERY, len(tokens) + 1, EVERY)
    return next(((n, period) for n in looks if (period := period_of(tokens[:n], limit))), None)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def show(name: str, tokens: list[int], text: str, limits: list[int]) -> None:
    for limit in limits:
        found = alarm(tokens, limit)
        if found is not None:
            n, period = found
            share = n * len(text) // max(1, len(tokens))
            tell(f"{limit}: ends {name} after {n} of {len(tokens)} tokens, period {period}: {text[:share][-120:]!r}")


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.repetitions", description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server's address")
    parser.add_argument("--out", type=Path, default=Path("build/repetitions.jsonl"), help="file of the answers")
    parser.add_argument("--answers", type=int, default=1_000, help="their number")
    parser.add_argument("--max-tokens", type=int, default=400, help="limit of each answer")
    parser.add_argument("--at-once", type=int, default=8, help="answers at once")
    parser.add_argument("--limits", type=int, nargs="+", default=[256], help="values of repetition_limit")
    parser.add_argument("--model", type=Path, help="GGUF file whose vocabulary tokenizes files")
    parser.add_argument("--folders", type=Path, nargs="*", default=[], help="where files of code and data are")
    parser.add_argument("--files", type=int, default=200, help="the number of files")
    given = parser.parse_args()
    n = 0
    async for one in answers(given.url, given.out, given.answers, given.at_once, given.max_tokens):
        n += 1
        show(one["name"], one["tokens"], one["text"], given.limits)
    tell(f"{n} answers")
    n = 0
    if given.model is not None:
        model = Model.load(given.model, without_weights=True)
        for path, text in islice(texts(given.folders, given.files), given.files):
            n += 1
            show(str(path), model.tokenize(text, add_special=False), text, given.limits)
        tell(f"{n} files")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
