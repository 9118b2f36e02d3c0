"""What a bench found, as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from pyllmcancel.bench.answer import ErrorKind
from pyllmcancel.bench.summary import Figures

Pick = Callable[[Figures], str]
NOTHING = "-"


def show(summaries: Sequence[Figures], names: Sequence[str], console: Console) -> None:
    """Print runs side by side, and what their errors mean; `names` heads the columns."""
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
    """A name, then a cell for each run; rows of which no run knows anything are left out."""
    mixes = all(summary["scenario"] == "mix" for summary in summaries)
    shown = COMMON + (OF_A_MIX if mixes else ())
    found = [(name, *(pick(summary) for summary in summaries)) for name, pick in shown]
    for name in dict.fromkeys(name for summary in summaries for name in summary["figures"]):
        found += [(readable(name), *(plain(summary["figures"].get(name)) for summary in summaries))]
    return [row for row in found if any(cell != NOTHING for cell in row[1:])]


def of(path: str, show: Callable[[Any], str]) -> Pick:
    """Show the value at ``a.b`` of a summary; the dash where there is none."""

    def pick(summary: Figures) -> str:
        value: Any = summary
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return NOTHING if value is None else show(value)

    return pick


def number(value: float) -> str:
    """Three digits that count, without an exponent."""
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


def phases(value: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join(f"{phase}: {spread(found)}" for phase, found in value.items()) or NOTHING


def readable(name: str) -> str:
    """``ttft_alone_s`` as "ttft alone, s"."""
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


COMMON: tuple[tuple[str, Pick], ...] = (
    ("requests", of("requests", str)),
    ("answered", of("ok", str)),
    ("hung up on", of("cancelled", str)),
    ("  at which point", of("cancelled_in", kinds)),
    ("failed", of("errors", str)),
    ("  how", of("errors_by_kind", kinds)),
    ("time, s", of("seconds", number)),
    ("first token, ms (p50 / p90 / p99)", of("ttft_ms", spread)),
    ("between tokens, ms", of("itl_ms", spread)),
    ("whole answer, ms", of("latency_ms", spread)),
    ("the process: hang-up to rest, ms", of("server.cancel_latency_ms", spread)),
    ("CPU, s", of("server.cpu_s", number)),
    ("CPU for clients that had left", of("server.cpu_after_leaving_share", percent)),
    ("the server's account: computed for nobody", of("own.step_share_after_leaving", percent)),
    ("tokens computed", of("own.tokens_computed", number)),
    ("tokens wasted", of("own.tokens_wasted", number)),
    ("its steps: hang-up to rest, ms", of("own.rest_after_ms", spread)),
    ("its own cancel latency, ms", of("own.cancel_latency_ms", phases)),
)
# A load that has no pauses; elsewhere the scenario's own preparations come in between.
OF_A_MIX: tuple[tuple[str, Pick], ...] = (
    ("goodput, tokens/s", of("goodput_tokens_per_s", number)),
    ("CPU, s per 1000 good tokens", of("server.cpu_s_per_1000_good_tokens", number)),
    ("CPU while nobody waited", of("server.idle_cpu_share", percent)),
)
