"""The figures as a table for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pyllmcancel.bench.answer import ErrorKind
from pyllmcancel.bench.summary import Figures

Shown = tuple[str, str, Callable[[Any], str]]
NOTHING = "-"
REST = "the process: hang-up to rest, ms"
NAMED_ABOVE = ("chosen",)  # figures of a scenario that have a row of their own


def show(summaries: Sequence[Figures], names: Sequence[str], console: Console) -> None:
    """Print runs side by side, and the meanings of their errors; `names` are the columns' heads."""
    table = Table(title=" / ".join(dict.fromkeys(str(found["scenario"]) for found in summaries)), title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    shown = rows(summaries)
    for row in shown:
        table.add_row(*row)
    console.print(table)
    for line in meanings(shown):
        console.print(f"  {line}", highlight=False)
    for line in warnings(summaries):
        console.print(f"  {line}", style="bold yellow", highlight=False)
    kinds = sorted({kind for found in summaries for kind in found["errors_by_kind"]})
    for kind in kinds:
        console.print(f"  {kind}: {'an HTTP error' if kind.startswith('http_') else ErrorKind[kind.upper()].text}")


def rows(summaries: Sequence[Figures]) -> list[tuple[str, ...]]:
    """Return rows of a name and a cell for each run, without rows for which no run has a value."""
    mixes = all(summary["scenario"] == "mix" for summary in summaries)
    shown = COMMON + (OF_A_MIX if mixes else ())
    found = [(name, *(cell(summary, path, show) for summary in summaries)) for name, path, show in shown]
    for name in dict.fromkeys(name for summary in summaries for name in summary["figures"] if name not in NAMED_ABOVE):
        found += [(readable(name), *(plain(summary["figures"].get(name)) for summary in summaries))]
    # With a process id the row that needs one client, too, says so by a dash and its meaning.
    kept = [REST] if any(summary["server"] for summary in summaries) else []
    return [row for row in found if row[0] in kept or any(cell != NOTHING for cell in row[1:])]


def meanings(shown: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line for each row whose name does not say how it was measured."""
    return [f"{name.strip()}: {MEANINGS[name]}" for name, *_ in shown if name in MEANINGS]


def warnings(summaries: Sequence[Figures]) -> list[str]:
    """Return what makes a run say less about cancels than its options suggest."""
    idle = [found["figures"].get("chosen", 0) for found in summaries if not found["hung_up"]]
    if not any(idle):
        return []
    return [
        f"{max(idle)} requests were to be cut, and none was: each ended before its --delay. "
        "Choose a shorter --delay or a larger --output-tokens."
    ]


def cell(summary: Figures, path: str, show: Callable[[Any], str]) -> str:
    """Return the value at ``a.b`` of a summary in readable form; a dash if there is none."""
    value: Any = summary
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return NOTHING if value is None else show(value)


def number(value: float) -> str:
    """Return three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def spread(value: Mapping[str, Any]) -> str:
    if not value["n"]:
        return NOTHING
    return " / ".join(number(value[name]) for name in ("p50", "p90", "p99"))


def kinds(value: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(value.items())) or NOTHING


def readable(name: str) -> str:
    """Return ``ttft_alone_s`` as "ttft alone, s"."""
    words, _, unit = name.rpartition("_")
    return f"{words.replace('_', ' ')}, {unit}" if unit in ("s", "ms") else name.replace("_", " ")


def plain(value: Any) -> str:
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return number(value)
        case [*values]:
            return ", ".join(plain(entry) for entry in values) or NOTHING
        case _:
            return str(value)


COMMON: tuple[Shown, ...] = (
    ("requests", "requests", str),
    ("answered", "ok", str),
    ("cancelled", "cancelled", str),
    ("  to be cut", "figures.chosen", str),
    ("  cut", "hung_up", str),
    ("  at which point", "cancelled_in", kinds),
    ("failed", "errors", str),
    ("  how", "errors_by_kind", kinds),
    ("time, s", "seconds", number),
    ("first token, ms (p50 / p90 / p99)", "ttft_ms", spread),
    ("between tokens, ms", "itl_ms", spread),
    ("whole answer, ms", "latency_ms", spread),
    (REST, "server.cancel_latency_ms", spread),
    ("CPU, s", "server.cpu_s", number),
    ("CPU for clients that had left", "server.cpu_after_leaving_share", percent),
)
# The load has no pauses; in other scenarios the preparations come in between.
OF_A_MIX: tuple[Shown, ...] = (
    ("goodput, tokens/s", "goodput_tokens_per_s", number),
    ("CPU, s per 1000 good tokens", "server.cpu_s_per_1000_good_tokens", number),
    ("CPU while no client waited", "server.idle_cpu_share", percent),
)
MEANINGS = {
    "  to be cut": "requests chosen by --percent. Some end before their --delay is over, and are not cut.",
    "  cut": "requests whose client hung up. The other cancelled ones were superseded or cancelled by the server.",
    "first token, ms (p50 / p90 / p99)": "from a request's last byte to the first piece of text, of complete answers.",
    "between tokens, ms": "the same percentiles, of the gaps within complete answers.",
    "whole answer, ms": "the same percentiles, from a request's last byte to the end of a complete answer.",
    REST: "until the server's process uses no more CPU time; needs --pid and one client.",
    "CPU for clients that had left": "share of the server's CPU time after hang-ups, until the process rests.",
    "goodput, tokens/s": "tokens of complete answers, per second of the run.",
    "CPU while no client waited": "share of the server's CPU time while no request was open: at least this was wasted.",
}
