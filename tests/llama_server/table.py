"""The page with the outcomes of llama.cpp's tests."""

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
fails, and the table says so. The file of the expected results names each test.
"""


def page(verdicts: Sequence[Verdict]) -> str:
    """Markdown: totals, and for each reason why tests did not pass how many share it."""
    sections = [section(result, verdicts) for result in ("failed", UNEXPLAINED, "not applicable")]
    return "\n".join([HEAD, totals(verdicts), *filter(None, sections)])


def totals(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts)
    cells = " | ".join(str(counts[name]) for name in ("passed", "failed", UNEXPLAINED, "not applicable"))
    head = "| tests | passed | failed, explained | failed, unexplained | not applicable |\n|---|---|---|---|---|"
    return f"{head}\n| {len(verdicts)} | {cells} |\n"


def section(result: str, verdicts: Iterable[Verdict]) -> str:
    """The reasons of a result, with the number of the tests of each file; nothing if no test has it."""
    groups: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        if verdict.verdict == result:
            groups.setdefault(verdict.why, Counter())[verdict.test.split("::")[0].removeprefix("unit/")] += 1
    if not groups:
        return ""
    lines = [f"## {result.capitalize()}\n", "| why | tests |", "|---|---|"]
    for why, files in groups.items():
        escaped = why.replace("|", "\\|").replace("\n", " ")
        lines.append(f"| {escaped} | {', '.join(f'{file} ({count})' for file, count in files.items())} |")
    return "\n".join(lines) + "\n"
