"""The files of a long soak, written line by line, and the verdict on them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bench.scenarios.report import Report
from bench.scenarios.server_log import ServerLog
from bench.scenarios.storm.stage import Visit
from bench.scenarios.storm.verdict import faults_in_log, shown, tabulate

# Warnings of a server in good health: readers that stall.
EXPECTED = ("does not read",)
TOLERANCE = 0.02  # the most that memory may gain in the second half, of its mean


class Lines(AbstractContextManager["Lines"]):
    """A file of JSON objects, one a line, each on the disk's side as soon as it is added; for any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("x", buffering=1)
        self._lock = threading.Lock()

    def add(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry) + "\n"
        with self._lock:
            self._file.write(line)

    def __exit__(self, *_: object) -> None:
        self._file.close()


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines: the last one may be cut. None if the soak has not come so far."""
    for line in read(path).splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def judge_files(folder: Path) -> Report:
    """Report on the soak whose files are in `folder`."""
    report = Report("long soak")
    samples = list(entries(folder / "samples.jsonl"))
    visits = [as_visit(entry) for entry in entries(folder / "visits.jsonl")]
    log = ServerLog()
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text(errors="replace").splitlines():
            log.take(line, 0.0)
    tabulate(report, visits, log, "all servers")
    judge_visits(report, visits, log)
    judge_memory(report, [sample for sample in samples if "idle" not in sample])
    judge_idle(report, [sample for sample in samples if "idle" in sample])
    page = read(folder / "page.txt").splitlines()
    report.figure("page", " | ".join(page[-4:]))
    report.check("the page's memory is flat, and nothing went wrong in it", is_flat(page), page[-4:])
    return report


def as_visit(entry: dict[str, Any]) -> Visit:
    return Visit(**entry | {"expected": tuple(entry["expected"])})


def judge_visits(report: Report, visits: list[Visit], log: ServerLog) -> None:
    whole = [visit for visit in visits if visit.stays]
    report.figure("visits", f"{len(visits):,}, of which {len(whole):,} waited for the whole answer")
    faults = [fault for visit in visits for fault in visit.faults]
    report.check("0 wrong: every client got the whole, right answer, or one error", not faults, shown(faults))
    told = faults_in_log(visits, log)
    report.check("every request is in one log once, with one ending of the right kind", not told, shown(told))
    lines = {name: [line.verb for line in found] for name, found in log.by_request.items()}
    wrong = [name for name in lines if lines[name].count("added") != 1 or len(log.endings(name)) != 1]
    report.figure("requests in the logs", f"{len(lines):,}")
    report.check("every request in a log was added once and ended once", not wrong, shown(wrong))
    complaints = log.complaints()
    for words in EXPECTED:
        report.figure(f"warnings: {words}", sum(words in text for text in complaints))
    others = [text for text in complaints if not any(words in text for words in EXPECTED)]
    report.check("no other warning, error or traceback in a log", not others, shown(others))


def judge_memory(report: Report, samples: list[dict[str, Any]]) -> None:
    """By the straight line through the second half: what memory gains from the half's begin to its end."""
    if not samples:
        report.check("memory was watched", False, "the stores are being filled")
        return
    last = samples[-1]
    report.figure("lasted", f"{timedelta(seconds=round(last['at']))}, {samples[0]['time']} to {last['time']}")
    report.figure("processor time", f"{last['used']:,.0f} s, {last['used'] / last['at']:.2f} of one core")
    half = samples[len(samples) // 2 :]
    times = np.array([sample["at"] for sample in half])
    rows = []
    for name in last["resident"]:
        values = np.array([sample["resident"][name] for sample in half])
        gain = float(np.polyfit(times, values, 1)[0] * (times[-1] - times[0]))
        first = samples[0]["resident"][name]
        rows.append((name, *(f"{mib:.1f}" for mib in (first, values[0], values.min(), values.max(), values[-1], gain))))
        flat = gain <= TOLERANCE * values.mean()
        report.check(f"{name}: memory is flat in the second half", flat, f"{gain:+.1f} MiB")
    report.table(("resident, MiB", "at first", "at half", "least then", "most then", "at the end", "gain"), rows)


def judge_idle(report: Report, found: list[dict[str, Any]]) -> None:
    """Nothing is held whenever the servers are idle."""
    held = [(one["idle"], one["gauges"]) for one in found if any(one["gauges"].values())]
    report.figure("looks at idle servers", len(found))
    report.check("no request, session, slot or cell is held by an idle server", not held, held[:3])
    known = [one for one in found if one.get("stores")]
    rows = []
    for server in dict.fromkeys(one["idle"] for one in known):
        stores = [one["stores"] for one in known if one["idle"] == server]
        rows += [
            (f"{server}: {name}", *(f"{stores[i][name]:,.0f}" for i in (0, len(stores) // 2, -1))) for name in stores[0]
        ]
    if rows:
        report.table(("kept within limits", "after a round", "at half", "at the end"), rows)


def is_flat(page: list[str]) -> bool:
    verdicts = [line for line in page if ": flat" in line or "GROWS" in line]
    return len(verdicts) == 3 and not any("GROWS" in line or "FAULT" in line for line in page)
