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
    """Markdown: totals, and for every file its tests; a reason is written once for all tests that share it."""
    by_file: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_file.setdefault(verdict.test.split("::")[0].removeprefix("unit/"), []).append(verdict)
    parts = [HEAD, totals(by_file)]
    parts += [section(name, own) for name, own in by_file.items()]
    return "\n".join(parts)


def totals(by_file: dict[str, list[Verdict]]) -> str:
    rows = ["| file | passed | failed, explained | failed, unexplained | not applicable |", "|---|---|---|---|---|"]
    whole: Counter[str] = Counter()
    for name, verdicts in by_file.items():
        counts = Counter(verdict.verdict for verdict in verdicts)
        whole += counts
        rows.append(f"| {name} | {cells(counts)} |")
    rows.append(f"| **all {sum(whole.values())}** | {cells(whole)} |")
    return "\n".join(rows) + "\n"


def cells(counts: Counter[str]) -> str:
    return " | ".join(str(counts[name]) for name in ("passed", "failed", UNEXPLAINED, "not applicable"))


def section(name: str, verdicts: Iterable[Verdict]) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.verdict, verdict.why), []).append(verdict.test.split("::", 1)[1])
    lines = [f"## {name}\n", "| result | why | tests |", "|---|---|---|"]
    for (verdict, why), tests in groups.items():
        lines.append(f"| {verdict} | {escaped(why)} | {names(tests)} |")
    return "\n".join(lines) + "\n"


def names(tests: Iterable[str]) -> str:
    """Functions, with the number of their cases among these."""
    counts = Counter(test.split("[")[0] for test in tests)
    return ", ".join(f"`{name}`" + (f" ({count})" if count > 1 else "") for name, count in counts.items())


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
