"""The sweep's results as a page of Markdown."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from tests.architectures.results import Result, Way
from tests.architectures.sweep import TOLERANCE, Report

KINDS: dict[str, Callable[[Report], bool]] = {
    "attention": lambda report: report.memory_kind == "attention" and not report.window,
    "sliding window": lambda report: report.memory_kind == "attention" and report.window > 0,
    "recurrent": lambda report: report.memory_kind == "recurrent",
    "hybrid": lambda report: report.memory_kind == "hybrid",
    "*of these, experts*": lambda report: report.experts,
}
PROTECTED = (
    "| memory kind | models | cancels | stopped in mid-graph | all bit-equal | within 1e-6 | disturbed | worst NMSE |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|"
)
UNPROTECTED = (
    "| memory kind | models | cancels | stopped in mid-graph | disturbed | models disturbed |\n"
    "|---|--:|--:|--:|--:|--:|"
)

UNPROTECTED_STRIDE = 5  # unless it is said
# Of a page: its title, what is said first, the options, and its file.
BY_CALLBACK = ("Cancels in the middle of a step", "", "", "abort-sweep.md")
BY_CUTS = (
    "Cancels at cuts",
    "This is the sweep of [abort-sweep.md](abort-sweep.md), with the same models, on the path that GPUs take.\n"
    "`cb_eval` is called after every node, and an abort leaves llama.cpp by an exception. The CPU computed it.\n",
    "--cuts ",
    "cut-sweep.md",
)


def page(protected: Sequence[Result], unprotected: Sequence[Result], way: Way) -> str:
    reports = [result.report for result in protected if result.report is not None]
    parts = [
        introduction(way, unprotected[0].way.stride if unprotected else 0),
        "## With the rules",
        "\n".join([PROTECTED, *(protected_row(kind, of_kind(reports, kind)) for kind in KINDS)]),
        *(without_the_rules(unprotected) if unprotected else []),
        *([] if way.cuts else which_architectures(protected, reports)),
        f"{len(protected) + len(unprotected)} sweeps, {cpu_minutes(protected, unprotected):.0f} minutes of one core.",
    ]
    return "\n\n".join(parts) + "\n"


def which_architectures(results: Sequence[Result], reports: Sequence[Report]) -> list[str]:
    """The parts that the pages on both sweeps share: the page on cuts refers to the other one."""
    refused: dict[str, list[str]] = {}
    for result in results:
        if result.refused:
            refused.setdefault(result.refused, []).append(result.model)
    return [
        "## How equal is judged",
        equality_text(reports),
        "## Refused, with the message that a user sees",
        "\n".join([f"- {', '.join(models)}: {message}" for message, models in refused.items()] or ["- none"]),
        "## Which architectures",
        *(f"**{kind}** ({len(names)}): {listed(names)}" for kind, names in names_by_kind(reports).items()),
    ]


def without_the_rules(results: Sequence[Result]) -> list[str]:
    reports = [result.report for result in results if result.report is not None]
    return [
        "## With the rules for recurrent and hybrid memories switched off",
        unprotected_text(results),
        "\n".join([UNPROTECTED, *(unprotected_row(kind, of_kind(reports, kind)) for kind in ("recurrent", "hybrid"))]),
        undisturbed_text(reports),
    ]


def introduction(way: Way, unprotected_stride: int) -> str:
    which = "every graph node" if way.stride == 1 else f"every {way.stride}th graph node"
    title, how, options, report = BY_CUTS if way.cuts else BY_CALLBACK
    options += "" if way.stride == 1 else f"--stride {way.stride} "
    options += "" if unprotected_stride == UNPROTECTED_STRIDE else f"--unprotected-stride {unprotected_stride} "
    made = f"`python -m tests.architectures build/toys {options}--report docs/measured/{report}`"
    if way.cuts:
        tail = "and judged by the same rules. `python tools/make_toy_models.py build/toys` and\n"
        return f"# {title}\n\n{how}It cancelled at {which}, {tail}{made} made this page."
    return (
        f"# {title}\n\n"
        "The sweep ran on the toy models that llama.cpp writes of its architectures. It cancelled a sequence at\n"
        f"{which} of a step that computes a chunk of its prompt, and of a step that generates a token. Meanwhile a\n"
        "neighbour was decoding, and a finished prefix lay idle in the cache. After each cancel three rows of logits\n"
        "are compared with those of a run in which nothing was cancelled: the neighbour's, those of a request that\n"
        "goes on from the idle prefix, and those of a request that goes on from the cancelled sequence's tokens.\n"
        "*Stopped in mid-graph*: the step was aborted. The other steps were finished for the neighbour's sake, by the\n"
        "rules for recurrent and hybrid memories.\n\n"
        "`python tools/make_toy_models.py build/toys` and\n"
        f"{made} made this page."
    )


def of_kind(reports: Sequence[Report], kind: str) -> list[Report]:
    return [report for report in reports if KINDS[kind](report)]


def totals(reports: Sequence[Report], *names: str) -> list[int]:
    return [sum(getattr(report, name) for report in reports) for name in names]


def protected_row(kind: str, reports: Sequence[Report]) -> str:
    points, aborted, exact, wrong = totals(reports, "points", "aborted", "exact", "wrong")
    worst = max((report.worst for report in reports), default=0.0)
    near = points - exact - wrong
    return f"| {kind} | {len(reports)} | {points:,} | {aborted:,} | {exact:,} | {near:,} | {wrong:,} | {worst:.1e} |"


def unprotected_row(kind: str, reports: Sequence[Report]) -> str:
    points, aborted, wrong = totals(reports, "points", "aborted", "wrong")
    hurt = sum(report.wrong > 0 for report in reports)
    return f"| {kind} | {len(reports)} | {points:,} | {aborted:,} | {wrong:,} | {hurt} |"


def unprotected_text(results: Sequence[Result]) -> str:
    stride = results[0].way.stride
    which = "every node" if stride == 1 else f"every {stride}th node"
    return (
        f"The same at {which}, with these memories treated like attention: the test can see what it guards against.\n"
        "Cancels after which a later step failed count as disturbed, too."
    )


def undisturbed_text(naive: Sequence[Report]) -> str:
    spared = sorted(report.model for report in naive if not report.wrong)
    return f"Never disturbed without the rules: {', '.join(spared) or 'none'}."


def equality_text(reports: Sequence[Report]) -> str:
    varying = sum(not report.batch_invariant for report in reports)
    return (
        f"In llama.cpp itself {varying} of these {len(reports)} models give a sequence logits that differ\n"
        "in their last bits beside other sequences, or in a fuller cache, or the kernels of this processor were never\n"
        f"compared. Their logits may differ by an NMSE of {TOLERANCE:.0e}, the others' by no bit."
    )


def names_by_kind(reports: Sequence[Report]) -> dict[str, list[str]]:
    names: defaultdict[str, list[str]] = defaultdict(list)
    for kind in list(KINDS)[:-1]:
        names[kind] = [report.model for report in of_kind(reports, kind)]
    return names


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def cpu_minutes(*results: Sequence[Result]) -> float:
    seconds = [result.seconds for group in results for result in group]
    return sum(value for value in seconds if not math.isnan(value)) / 60.0
