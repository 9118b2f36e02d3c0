"""Cancel latency with drafting on and off: phase by phase, and in the middle of an answer that is copied."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.drafting import edits
from bench.drafting.results import Result
from bench.drafting.servers import OFF, ON, Bench, in_turn
from bench.drafting.texts import Purpose
from bench.side_by_side.cancel_latency import KINDS, leave_once
from bench.side_by_side.measurement import Subject
from pyllmcancel.bench.client import Outcome
from pyllmcancel.bench.percentiles import distribution

AFTER = (0.05, 0.4)  # seconds from the first token to the close
COPIED = "decode of an edit, streaming"


async def measure(bench: Bench, purpose: Purpose, *, closes: int, seed: int) -> Result:
    """One client leaves, `closes` times for each kind: from its close until the server's process rests."""
    subjects = bench.take_part((OFF, ON))
    some = edits.edits(purpose, closes, seed)
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in subjects}
    for number in range(closes):
        for name, subject in in_turn(subjects, number):
            for kind in KINDS:
                await leave_once(subject, kind, found[name].setdefault(kind.name, nothing()))
            await leave_edit(subject, some[number % len(some)], found[name].setdefault(COPIED, nothing()))
    rows = []
    for kind_name in [*(kind.name for kind in KINDS), COPIED]:
        for name in subjects:
            entry = found[name][kind_name]
            times = distribution(entry["latency"], 1e3)
            rows.append([kind_name, name, times["n"], times["p50"], times["p99"], entry["missed"]])
    columns = ("phase", "server", "cancels", "median ms", "p99 ms", "ended before")
    return Result("cancel latency: from the client's close until the process rests", columns, rows, found)


def nothing() -> dict[str, Any]:
    return {"latency": [], "cpu": [], "missed": 0}


async def leave_edit(subject: Subject, edit: edits.Edit, found: dict[str, Any]) -> None:
    """Leave in the middle of an answer whose tokens can be drafted from its prompt."""
    delay = subject.chance.uniform(*AFTER)
    await subject.settle()
    call = subject.start(edit.prompt, edit.longest, fields=edits.COMPLETION.fields(edit))
    begun = await call.first_token()
    await asyncio.sleep(delay)
    left_at = call.cut()
    stop = await subject.rest_after(left_at)
    if not begun or (await call.ended()).outcome is not Outcome.CANCELLED:
        found["missed"] += 1
        return
    found["latency"].append(stop.seconds)
    found["cpu"].append(stop.cpu_seconds)
