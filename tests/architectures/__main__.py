"""Sweep every toy model of a folder, and tell what came of it by memory kind.

    python tools/make_toy_models.py build/toys
    python -m tests.architectures build/toys --report docs/abort-sweep.md

Exits with 1 if a protected sweep finds anybody disturbed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from pathlib import Path

from pyllmcancel.errors import ContextError, ModelLoadError
from tests.architectures.sweep import FailedStepError, Report, sweep

HEADER = "| memory kind | architectures | cancels | stopped in mid-graph | all bit-equal | disturbed | worst NMSE |"


def table(reports: list[Report], title: str) -> list[str]:
    """One row per memory kind, in Markdown."""
    by_kind: defaultdict[str, list[Report]] = defaultdict(list)
    for report in reports:
        by_kind[report.memory_kind].append(report)
    lines = [f"### {title}", "", HEADER, "|---|---|---|---|---|---|---|"]
    for kind, own in sorted(by_kind.items()):
        counts = [sum(getattr(report, name) for report in own) for name in ("points", "aborted", "exact", "wrong")]
        hurt = sum(report.wrong > 0 for report in own)
        points, aborted, exact, wrong = (f"{count:,}" for count in counts)
        worst = max(report.worst for report in own)
        lines.append(
            f"| {kind} | {len(own)} | {points} | {aborted} | {exact} | {wrong} in {hurt} models | {worst:.1e} |"
        )
    return [*lines, ""]


def sweep_all(models: list[Path], *, protected: bool, stride: int) -> tuple[list[Report], dict[str, str]]:
    """Reports, and why the others could not be swept."""
    reports, refused = [], {}
    for path in models:
        try:
            report = sweep(path, protected=protected, stride=stride)
        except (ModelLoadError, ContextError, FailedStepError) as error:
            refused[path.stem] = f"{type(error).__name__}: {error}"
            sys.stderr.write(f"{path.stem}: refused, {error}\n")
            continue
        reports.append(report)
        sys.stderr.write(
            f"{path.stem}: {report.memory_kind}, {report.points} cancels, {report.aborted} stopped, "
            f"{report.wrong} disturbed, worst {report.worst:.1e} {report.findings[:1]}\n"
        )
    return reports, refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, help="folder of GGUF files")
    parser.add_argument("--stride", type=int, default=1, help="cancel at every so many nodes [1]")
    parser.add_argument("--unprotected-stride", type=int, default=5, help="the same with the rules off; 0: leave out")
    parser.add_argument("--report", type=Path, help="write the tables here")
    arguments = parser.parse_args()
    models = sorted(arguments.models.glob("*.gguf"))
    began = time.monotonic()
    reports, refused = sweep_all(models, protected=True, stride=arguments.stride)
    which = "every graph node" if arguments.stride == 1 else f"every {arguments.stride}th graph node"
    lines = ["# Cancels in the middle of a step", "", f"At {which} of a prefill step and of a decode step.", ""]
    lines += table(reports, "With the rules")
    if arguments.unprotected_stride:
        naive, _ = sweep_all(models, protected=False, stride=arguments.unprotected_stride)
        lines += table(naive, "With the rules for recurrent and hybrid memories switched off")
    varying = sum(not report.batch_invariant for report in reports)
    lines += [
        f"In llama.cpp itself {varying} of these {len(reports)} give a sequence logits that differ in their last bits",
        "in other company, or in a fuller cache: they are judged by an NMSE of at most 1e-6, the others by every bit.",
    ]
    lines += ["", "Refused, with the message that a user sees:", ""]
    lines += [f"- {name}: {why}" for name, why in refused.items()] or ["- none"]
    lines += ["", f"{len(models)} models in {time.monotonic() - began:.0f} s.", ""]
    text = "\n".join(lines)
    sys.stdout.write(text)
    if arguments.report is not None:
        arguments.report.write_text(text)
    return 1 if any(report.wrong for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
