"""``python -m bench.report FOLDER``: write the report of a side-by-side run."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers.programs import ROOT
from bench.report.aims import AIMS, Verdict
from bench.report.pictures import draw_all
from bench.report.results import Results, read_results
from bench.report.sections import SECTIONS, Section, markdown
from bench.side_by_side.measurements import MEASUREMENTS
from bench.tables import head, line

REPORT = ROOT / "bench" / "REPORT.md"
REMARKS = Path(__file__).with_name("remarks.toml")
Document = Mapping[str, Any]  # what `bench.native` wrote of one benchmark and one model


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description="Write the report of a run.")
    parser.add_argument("folder", type=Path, help="what `python -m bench.side_by_side --out` was given")
    parser.add_argument("--report", type=Path, default=REPORT, help="where it goes; plots go into plots/ beside it")
    arguments = parser.parse_args()
    results = read_results(arguments.folder)
    pictures = draw_all(results, arguments.report.parent / "plots")
    remarks = tomllib.loads(REMARKS.read_text(encoding="utf-8"))
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(arguments.folder.glob("micro-*.json"))]
    text = report(results, pictures, remarks, documents)
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
        *head(["", ""], text=2),
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
    lines += ["", *head(["peer", "version", "how it was started"], text=3)]
    described = [name for name in results.peers if name in run["peers"]]
    return lines + [
        line([name, *(without_folders(run["peers"][name][key]) for key in ("version", "notes"))]) for name in described
    ]


def aims(results: Results, remarks: Mapping[str, str]) -> list[str]:
    """A line for each aim; what was tried where one was missed comes below."""
    lines, missed = head(["aim", "", "found"], text=3), []
    for aim in AIMS:
        verdict, found = aim.judge(results)
        lines.append(line([aim.text, verdict, found]))
        if verdict is Verdict.MISSED and aim.key in remarks:
            missed.append(f"- {aim.text}: {remarks[aim.key].strip()}")
    return lines + (["", "Where one was missed:", "", *missed] if missed else [])


def show(section: Section, results: Results, pictures: Mapping[str, Path]) -> list[str]:
    drawn = [f"![{name}](plots/{pictures[name].name})" for name in section.pictures if name in pictures]
    lines = [f"## {section.title}", "", section.text, "", *markdown(results, section.rows)]
    return [*lines, "", *drawn] if drawn else lines


def microbenchmarks(documents: Sequence[Document]) -> list[str]:
    """One table for each benchmark, the models' rows under each other; nothing where there is no document."""
    if not documents:
        return []
    commits = ", ".join(sorted({document["code"]["commit"][:12] for document in documents}))
    origin = f"Written by `python -m bench.native` at commit {commits}, with no server and no client."
    lines = ["## The core on its own", "", origin]
    for name in dict.fromkeys(document["name"] for document in documents):
        found = [document for document in documents if document["name"] == name]
        title, unit = str(found[0]["title"]), found[0]["unit"]
        text = f"{title[0].upper()}{title[1:]}; in {unit} where the column does not say otherwise."
        lines += [
            "",
            f"### {name}",
            "",
            text,
            "",
            *micro_table([row for document in found for row in document["rows"]]),
        ]
    return lines


def micro_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All columns but the extremes: quartiles say it shorter."""
    keys = [key for key in rows[0] if key not in ("min", "max")]
    aligned = line(["---" if isinstance(rows[0][key], str) else "---:" for key in keys])
    return [line(keys), aligned, *(line([micro_cell(row.get(key, "")) for key in keys]) for row in rows)]


def micro_cell(value: object) -> str:
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else str(value)


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
    """Paths of the machine that measured are left out; names of files stay."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/]+/)+", "", text)


if __name__ == "__main__":
    sys.exit(main())
