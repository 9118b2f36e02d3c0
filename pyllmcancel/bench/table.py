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


def show(summaries: Sequence[Figures], names: Sequence[str], console: Console) -> None:
    """Print runs side by side, and the meanings of their errors; `names` are the columns' heads."""
    table = Table(title=" / ".join(dict.fromkeys(str(found["scenario"]) for found in summaries)), title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in rows(summaries):
        table.add_row(*row)
    console.print(table)
    kinds = sorted({kind for found in summaries for kind in found["errors_by_kind"]})
    for kind in kinds:
        console.print(f"  {kind}: {'an HTTP error' if kind.startswith('http_') else ErrorKind[kind.upper()].text}")


def rows(summaries: Sequence[Figures]) -> list[tuple[str, ...]]:
    """Return rows of a name and a cell for each run, without rows for which no run has a value."""
    mixes = all(summary["scenario"] == "mix" for summary in summaries)
    shown = COMMON + (OF_A_MIX if mixes else ())
    found = [(name, *(cell(summary, path, show) for summary in summaries)) for name, path, show in shown]
    for name in dict.fromkeys(name for summary in summaries for name in summary["figures"]):
        found += [(readable(name), *(plain(summary["figures"].get(name)) for summary in summaries))]
    return [row for row in found if any(cell != NOTHING for cell in row[1:])]


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
    ("  at which point", "cancelled_in", kinds),
    ("failed", "errors", str),
    ("  how", "errors_by_kind", kinds),
    ("time, s", "seconds", number),
    ("first token, ms (p50 / p90 / p99)", "ttft_ms", spread),
    ("between tokens, ms", "itl_ms", spread),
    ("whole answer, ms", "latency_ms", spread),
    ("the process: hang-up to rest, ms", "server.cancel_latency_ms", spread),
    ("CPU, s", "server.cpu_s", number),
    ("CPU for clients that had left", "server.cpu_after_leaving_share", percent),
)
# The load has no pauses; in other scenarios the preparations come in between.
OF_A_MIX: tuple[Shown, ...] = (
    ("goodput, tokens/s", "goodput_tokens_per_s", number),
    ("CPU, s per 1000 good tokens", "server.cpu_s_per_1000_good_tokens", number),
    ("CPU while no client waited", "server.idle_cpu_share", percent),
)
