"""The first lines of the screen: the server, its speed, its cancels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.text import Text

from pyllmcancel.top.choices import Choices
from pyllmcancel.top.replicas import Replicas
from pyllmcancel.top.state import State
from pyllmcancel.top.text import milliseconds, plain


def header(state: State, choices: Choices, now: float, width: int) -> list[Text]:
    server, stats = state.server, state.stats
    first = Text.assemble(("pyllmcancel", "bold"), f" {plain(server.version)}  ", (plain(server.model), "bold cyan"))
    link = Text(plain(choices.link), "bold red" if choices.lost else "green")
    right = link if choices.lost else Text.assemble((plain(choices.url) + "  ", "dim"), link)
    first = beside(first, right, width)
    rates = state.rates(now)
    used = stats.get("slots_used", len({slot for request in state.running() for slot in request.slots}))
    figures = [
        ("decode", f"{rates['decode']:,.1f} tokens/s"),
        ("prefill", f"{rates['prefill']:,.0f} tokens/s"),
        ("slots", f"{used:.0f}/{server.n_slots}"),
    ]
    figures.append(("queue", f"{stats.get('waiting', len(state.waiting())):.0f}"))
    if "cells_used" in stats:
        figures.append(("cells", f"{stats['cells_used']:,.0f}/{server.n_cells:,}"))
    cancels = [("cancels", latencies_text(state.latencies(now)))]
    if "wasted_tokens" in stats:
        cancels.append(("wasted", f"{stats['wasted_tokens']:,.0f}"))
    if "saved_tokens" in stats:
        cancels.append(("saved", f"{stats['saved_tokens']:,.0f} tokens"))
    if not server.all_owners:
        cancels.append(("shown", "this key's owner only"))
    return [first, named(figures), named(cancels)]


def replica_lines(replicas: Replicas, width: int) -> list[Text]:
    """Return each replica in a few words, as many in a line as have room."""
    lines = [Text()]
    for name, state in replicas.states.items():
        text = Text()
        text.append(plain(name), "bold reverse" if name == replicas.shown.replica else "bold")
        used = len({slot for request in state.running() for slot in request.slots})
        text.append(f" {used}/{state.server.n_slots} slots, {len(state.waiting())} waiting", "dim")
        if lines[-1].cell_len and lines[-1].cell_len + text.cell_len + 2 > width:
            lines.append(Text())
        lines[-1] += text.append("  ")
    return lines


def latencies_text(found: Sequence[float]) -> str:
    """Return the text on the latencies of cancels, which are in milliseconds and in order."""
    if not found:
        return "none in 5 min"
    return f"{len(found):,} in 5 min: p50 {milliseconds(median(found))}, max {milliseconds(found[-1])}"


def named(figures: Sequence[tuple[str, str]]) -> Text:
    """Return names and values in a row."""
    text = Text()
    for name, value in figures:
        text.append(f"{name} ", "dim")
        text.append(value, "bold")
        text.append("  ")
    return text


def beside(left: Text, right: Text, width: int) -> Text:
    """Return one text at each edge. If both do not fit, the left one is cut, because the right one is news."""
    room = max(0, width - right.cell_len - 1)
    left.truncate(room, overflow="ellipsis", pad=True)
    return Text.assemble(left, " ", right)
