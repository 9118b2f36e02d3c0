"""The screen: the server, its figures, and one table of requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pyllmcancel.top.client import STRANGE, Reading, ServerError, duration, milliseconds, plain

Entry = dict[str, Any]
Key = tuple[object, ...]
LIVE = ("waiting", "running", "cancelling")
N_OTHER_LINES = 6  # than the requests
KEYS = "up/down select   c cancel   s cancel its session   q quit"
COUNTERS = {"decode": "generated_tokens_total", "prefill": "prompt_tokens_total"}
COLUMNS = (("  request", 3), ("state", 4), ("tokens", None), ("time", None), ("stopped in", None), ("session, key", 3))


@dataclass(slots=True)
class View:
    """The last reading, the one before it for rates, why there is no newer one (`problem`), and the user's choices."""

    url: str
    reading: Reading
    before: Reading | None = None
    selected: Key | None = None
    message: str = ""
    problem: str = ""
    keys: str = KEYS

    def live(self) -> list[Entry]:
        return [entry for entry in self.reading.requests if entry["status"] in LIVE]


def key_of(entry: Entry) -> Key:
    """Return what names a request: two owners may have requests of one id."""
    return entry.get("replica"), entry["owner"], entry["id"]


def draw(view: View, width: int, n_rows: int | None) -> Group:
    """Return the screen, with at most `n_rows` requests, the selected one among them; ServerError if that fails."""
    try:
        return drawn(view, width, n_rows)
    except (KeyError, TypeError, ValueError):
        raise ServerError(f"{view.url}: {STRANGE}") from None


def drawn(view: View, width: int, n_rows: int | None) -> Group:
    entries = view.reading.requests
    selected = next((i for i, entry in enumerate(entries) if key_of(entry) == view.selected), 0)
    n_shown = len(entries) if n_rows is None else max(1, n_rows)
    first = max(0, selected - n_shown + 1)
    table = Table(box=None, expand=True, pad_edge=False, header_style="bold underline")
    for name, ratio in COLUMNS:
        table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
    for entry in entries[first : first + n_shown]:
        is_selected = entry["status"] in LIVE and key_of(entry) == view.selected
        table.add_row(*cells(entry, "> " if is_selected else "  "), style="reverse" if is_selected else style_of(entry))
    foot = [Text(view.message, "bold"), Text(view.keys, "dim")] if view.keys else []
    lines = [heading(view), Text("  ".join(figures(view.reading, view.before))), Text(cancels(view.reading)), *foot]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Group(*lines[:3], table, *lines[3:])


def heading(view: View) -> Text:
    trouble = "; ".join([view.problem] if view.problem else view.reading.unreached)
    rest = (trouble, "bold red") if trouble else (view.url, "dim")
    return Text.assemble(("pyllmcancel ", "bold"), " ".join(view.reading.names), "  ", rest)


def figures(now: Reading, before: Reading | None) -> Iterator[str]:
    """Yield the server's figures, each with its name; none if the key may not read them."""
    have = now.metrics
    if before is not None and before.metrics:
        seconds = max(now.moment - before.moment, 1e-3)
        for phase, counter in COUNTERS.items():
            # A server that has started again counts from 0.
            n_tokens = max(0.0, have.get(counter, 0.0) - before.metrics.get(counter, 0.0))
            yield f"{phase} {n_tokens / seconds:,.1f} tokens/s"
    for name in ("slots", "cells"):
        if f"{name}_used" in have:
            yield f"{name} {have[f'{name}_used']:,.0f}/{have.get(name, 0):,.0f}"
    if "requests_waiting" in have:
        yield f"queue {have['requests_waiting']:,.0f}"


def cancels(now: Reading) -> str:
    """Return the line on cancels: latencies of the listed requests, and the tokens since the server's start."""
    found = [entry["cancel_latency_ms"] for entry in now.requests if entry["cancel_latency_ms"] is not None]
    speed = f": p50 {milliseconds(median(found))}, max {milliseconds(max(found))}" if found else ""
    tokens = [(name, now.metrics.get(f"tokens_{name}_total")) for name in ("wasted", "saved")]
    parts = [f"{name} {value:,.0f} tokens" for name, value in tokens if value is not None]
    return "  ".join([f"cancels {len(found)}{speed}", *parts])


def cells(entry: Entry, mark: str) -> Iterator[str]:
    yield mark + plain(entry["id"])
    yield state_of(entry)
    limit = "" if entry["max_tokens"] is None else f"/{entry['max_tokens']:,}"
    yield f"{entry['prompt_tokens_done']:,}/{entry['prompt_tokens']:,} + {entry['completion_tokens']:,}{limit}"
    yield duration(entry["seconds"])
    yield "" if entry["cancel_latency_ms"] is None else milliseconds(entry["cancel_latency_ms"])
    named = (("session", "session"), ("key", "supersede"), ("model", "model"), ("on", "replica"))
    yield plain(", ".join(f"{name} {entry[field]}" for name, field in named if entry.get(field) is not None))


def state_of(entry: Entry) -> str:
    """Return the phase of a live request, or how it ended."""
    if entry["status"] in LIVE:
        return plain(entry["phase"] if entry["status"] == "running" else entry["status"])
    match entry["finish_reason"]:
        case "cancelled":
            by = entry["superseded_by"]
            return plain(f"cancelled: {entry['cancel_reason']}" if by is None else f"superseded by {by}")
        case "error":
            return f"failed: {plain(entry['error'])}"
        case other:
            return plain(other)


def style_of(entry: Entry) -> str:
    if entry["status"] in LIVE:
        return ""
    return {"error": "red", "cancelled": "magenta"}.get(entry["finish_reason"], "dim")
