"""``python -m bench.report FOLDER``: write the report of a side-by-side run."""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from bench.peers.protocol import ROOT
from bench.report.aims import AIMS, REMARKS, Verdict
from bench.report.microbenchmarks import Document, microbenchmarks, read_documents
from bench.report.pictures import draw_all
from bench.report.results import Results, read_results
from bench.report.sections import SECTIONS, Section
from bench.report.tables import line, markdown
from bench.side_by_side.measurements import MEASUREMENTS

REPORT = ROOT / "bench" / "REPORT.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description="Write the report of a run.")
    parser.add_argument("folder", type=Path, help="what `python -m bench.side_by_side --out` was given")
    parser.add_argument("--report", type=Path, default=REPORT, help="where it goes; plots go into plots/ beside it")
    arguments = parser.parse_args()
    results = read_results(arguments.folder)
    pictures = draw_all(results, arguments.report.parent / "plots")
    remarks = tomllib.loads(REMARKS.read_text(encoding="utf-8"))
    text = report(results, pictures, remarks, read_documents(arguments.folder))
    arguments.report.write_text(text, encoding="utf-8")
    sys.stderr.write(f"{arguments.report}, {len(pictures)} plots\n")
    return 0


def report(
    results: Results, pictures: Mapping[str, Path], remarks: Mapping[str, str], documents: Sequence[Document] = ()
) -> str:
    """The whole text."""
    lines = ["# Side by side", "", *conditions(results), "", "## What was to be reached", "", *aims(results, remarks)]
    for section in SECTIONS:
        lines += ["", *show(section, results, pictures)]
    lines += ["", *found] if (found := microbenchmarks(documents)) else []
    lines += ["", "## Not measured", "", *gaps(results), "", "## How it was made", "", *commands(results)]
    return "\n".join(lines) + "\n"


def conditions(results: Results) -> list[str]:
    run, machine = results.run, results.run["machine"]
    lines = [
        "Written by `python -m bench.report` from the JSON of one run; no figure is typed by hand. All peers were "
        "measured in turn, a server freshly started for each part, with the same model file, compute threads, slots "
        "and context. Values of all rounds are taken together; ratios compare medians of this run.",
        "",
        line(["", ""]),
        line(["---", "---"]),
        line(["processor", f"{machine['cpu']}, {machine['cores']} cores usable"]),
        line(["memory", f"{machine['memory_gib']} GiB"]),
        line(["system", f"{machine['system']}, Python {machine['python']}"]),
        line(["model", f"{run['model']}, {run['model_mib']} MiB"]),
        line(["compute threads", str(run["threads"])]),
        line(["date", f"{results.parts[0]['began']} to {results.parts[-1]['began']}"]),
        line(["commit", ", ".join(sorted(results.commits))]),
    ]
    if stolen := [part["stolen_percent"] for part in results.parts if "stolen_percent" in part]:
        text = f"{median(stolen):.1f} % of what was wanted (median of the parts; at most {max(stolen):.1f} %)"
        lines.append(line(["time that the host gave to other machines", text]))
    if run["effort"] != 1.0:
        lines.append(line(["**effort**", f"**{run['effort']}: a trial, not a measurement**"]))
    lines += ["", line(["peer", "version", "how it was started"]), line(["---", "---", "---"])]
    described = [name for name in results.peers if name in run["peers"]]
    return lines + [
        line([name, *(without_folders(run["peers"][name][key]) for key in ("version", "notes"))]) for name in described
    ]


def aims(results: Results, remarks: Mapping[str, str]) -> list[str]:
    """A line for each aim; what was tried where one was missed comes below."""
    lines = [line(["aim", "", "found"]), line(["---", "---", "---"])]
    missed = []
    for aim in AIMS:
        finding = aim.judge(results)
        lines.append(line([aim.text, finding.verdict, finding.text]))
        if finding.verdict is Verdict.MISSED and aim.key in remarks:
            missed.append(f"- {aim.text}: {remarks[aim.key].strip()}")
    return lines + (["", "Where one was missed:", "", *missed] if missed else [])


def show(section: Section, results: Results, pictures: Mapping[str, Path]) -> list[str]:
    drawn = [f"![{name}](plots/{pictures[name].name})" for name in section.pictures if name in pictures]
    lines = [f"## {section.title}", "", section.text, "", *markdown(results, section.rows)]
    return [*lines, "", *drawn] if drawn else lines


def gaps(results: Results) -> list[str]:
    made = {part["measurement"] for part in results.parts}
    left_out = [f"- {name}: left out of this run" for name in MEASUREMENTS if name not in made]
    failed = [f"- {name}, {peer}: {without_folders(reason)}" for name, peer, reason in results.gaps()]
    return failed + left_out or ["Nothing is missing."]


def commands(results: Results) -> list[str]:
    return [
        "```sh",
        *dict.fromkeys(without_folders(command) for command in results.run["commands"]),
        "python -m bench.report FOLDER",
        "```",
    ]


def without_folders(text: str) -> str:
    """Where files lie is nobody's business but that machine's."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/]+/)+", "", text)


if __name__ == "__main__":
    sys.exit(main())
