"""The checks after a storm: by its clients, by the server's log, and by its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.scenarios.harness import Server
from bench.scenarios.report import Report
from bench.scenarios.server_log import ServerLog
from bench.scenarios.storm.stage import Visit


def faults_in_log(visits: Sequence[Visit], log: ServerLog) -> list[str]:
    """Return the visits whose ending in the log is not the expected one: none, another, or several."""
    found = []
    for visit in visits:
        lines = log.by_request.get(visit.id, [])
        n_added = sum(line.verb == "added" for line in lines)
        endings = log.endings(visit.id) if lines else []
        if n_added > 1 or len(endings) > 1 or n_added > len(endings):  # one that was cancelled early was never added
            found.append(f"{visit.id}: accepted {n_added} times, ended {len(endings)} times")
            continue
        told = (endings[0].verb, endings[0].reason) if endings else None
        if not is_right(visit, told):
            found.append(f"{visit.id}, {visit.way}, {visit.what}: ended as {told}, expected {visit.expected}")
    return found


def is_right(visit: Visit, told: tuple[str, str | None] | None) -> bool:
    match told:
        case None:
            return None in visit.expected
        case ("cancelled", reason):
            return reason in visit.expected
        case ("finished", _):
            return visit.stays or visit.late
        case _:
            return False


def judge(report: Report, visits: Sequence[Visit], server: Server, prefix: str) -> None:
    """Add the checks of one wave, by clients and log."""
    faults = [fault for visit in visits for fault in visit.faults]
    report.check(f"{prefix}: every client got the whole, right answer, or one error", not faults, shown(faults))
    told = faults_in_log(visits, server.log)
    report.check(f"{prefix}: one ending each, of the right kind; no cancel lost, none astray", not told, shown(told))
    complaints = server.log.complaints()
    report.check(f"{prefix}: no warning, error or traceback in the log", not complaints, shown(complaints))


async def judge_metrics(report: Report, server: Server, prefix: str) -> None:
    """The counters say what the log says: of all requests since the server's start."""
    counted = await server.labelled("requests_total", "outcome")
    reasons = await server.labelled("requests_cancelled_total", "reason")
    endings = [line for lines in server.log.by_request.values() for line in lines if line.verb != "added"]
    finished = Counter(line.reason for line in endings if line.verb == "finished")
    logged = dict(finished) | {"cancelled": sum(line.verb == "cancelled" for line in endings)}
    logged_reasons = Counter(line.reason for line in endings if line.verb == "cancelled")
    same = without_zeros(counted) == without_zeros(logged) and without_zeros(reasons) == dict(logged_reasons)
    report.check(f"{prefix}: the counters add up", same, f"{counted} {reasons}, by the log {logged} {logged_reasons}")


def without_zeros(counts: Mapping[str | None, float]) -> dict[str | None, float]:
    return {name: count for name, count in counts.items() if count}


def shown(faults: Sequence[str]) -> str:
    return f"{len(faults)}: " + " | ".join(fault[:300] for fault in faults[:4])


def tabulate(report: Report, visits: Sequence[Visit], log: ServerLog, prefix: str) -> None:
    """How the visits of each way ended."""
    columns = ("finished", "cancelled", "not accepted")
    counts: Counter[tuple[str, str]] = Counter()
    phases: Counter[str | None] = Counter()
    for visit in visits:
        endings = log.endings(visit.id) if visit.id in log.by_request else []
        counts[visit.way, endings[0].verb if endings else "not accepted"] += 1
        phases.update(line.phase for line in endings if line.verb == "cancelled")
    ways = sorted({visit.way for visit in visits})
    report.table((prefix, *columns), [(way, *(counts[way, column] for column in columns)) for way in ways])
    report.figure(f"{prefix}: cancelled in", dict(phases))
