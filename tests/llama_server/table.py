"""The page with the outcomes of llama.cpp's tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.llama_server.verdicts import UNEXPLAINED, Verdict

HEAD = """\
# llama.cpp's own server tests, against this server

The tests of the pinned llama.cpp (`tools/server/tests/unit`) ran unmodified, each against its own `pyllmcancel serve`.
`python -m tests.llama_server` wrote this page, and `--help` says how. The expected result of each test is in
[`tests/llama_server/verdicts.toml`](../../tests/llama_server/verdicts.toml).

Their models are not available. A tiny model with random weights and a tokenizer of the same kind stands in for the
small language model. The packaged model stands in for the one that fills gaps, and tiny encoders for those that embed
and rank: random weights, too, with a seed that orders the tests' documents as their model does, and vocabularies that
give the tests' texts as many tokens. A test that asserts words, or numbers of tokens, that only their model can give
fails, and the table says so.
"""


def page(verdicts: Sequence[Verdict]) -> str:
    """Markdown: totals, and for each reason why tests did not pass the tests that share it."""
    sections = [section(result, verdicts) for result in ("failed", UNEXPLAINED, "not applicable")]
    return "\n".join([HEAD, totals(verdicts), *filter(None, sections)])


def file_of(verdict: Verdict) -> str:
    return verdict.test.split("::")[0].removeprefix("unit/")


def totals(verdicts: Sequence[Verdict]) -> str:
    head = "| tests | passed | failed, explained | failed, unexplained | not applicable |\n|---|---|---|---|---|"
    return f"{head}\n| {len(verdicts)} | {cells(Counter(verdict.verdict for verdict in verdicts))} |\n"


def cells(counts: Counter[str]) -> str:
    return " | ".join(str(counts[name]) for name in ("passed", "failed", UNEXPLAINED, "not applicable"))


def section(result: str, verdicts: Iterable[Verdict]) -> str:
    """The reasons of a result; nothing if no test has it."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.verdict == result:
            groups.setdefault(verdict.why, []).append(verdict)
    if not groups:
        return ""
    lines = [f"## {result.capitalize()}\n", "| why | tests |", "|---|---|"]
    lines += [f"| {escaped(why)} | {named(result, own)} |" for why, own in groups.items()]
    return "\n".join(lines) + "\n"


def named(result: str, verdicts: Iterable[Verdict]) -> str:
    """Names of the tests, or how many each file has of those that ask for what is not here."""
    if result == "not applicable":
        counts = Counter(map(file_of, verdicts))
        return ", ".join(f"{file} ({count})" for file, count in counts.items())
    return names(verdict.test.split("::", 1)[1] for verdict in verdicts)


def names(tests: Iterable[str]) -> str:
    """Functions, with the number of their cases among these."""
    counts = Counter(test.split("[")[0] for test in tests)
    return ", ".join(f"`{name}`" + (f" ({count})" if count > 1 else "") for name, count in counts.items())


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
