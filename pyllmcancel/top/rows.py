"""The rows of the screen's lists, each in a given width."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from pyllmcancel.top.request import Request, why_ended
from pyllmcancel.top.text import duration, milliseconds, plain


def live_row(request: Request, selected: bool, now: float, width: int) -> Text:
    progress = f"{request.done:,}/{request.prompt_tokens:,} + {request.generated:,}"
    if request.max_tokens is not None:
        progress += f"/{request.max_tokens:,}"
    state = "cancelling" if request.status == "cancelling" else request.phase
    age = duration(max(0.0, now - request.arrived)) if request.arrived is not None else ""
    wide = max(12, width // 3)
    columns = ((request.id, wide), (state, 10), (progress, 21), (age, 7), (group_name(request), width - wide - 40))
    row = Text.assemble("> " if selected else "  ", *((fixed(text, size), "") for text, size in columns))
    if selected:
        row.stylize("reverse")
    return row


def group_name(request: Request) -> str:
    parts = [f"on {request.replica}"] if request.replica else []
    parts += [f"session {request.session}"] if request.session is not None else []
    if request.supersede is not None:
        parts.append(f"key {request.supersede.strip()}")
    return ", ".join(parts)


def group_rows(requests: Sequence[Request], width: int) -> list[Text]:
    """Return sessions with their live requests, then supersede keys."""
    by_session: dict[str, list[Request]] = {}
    for request in requests:
        if request.session is not None:
            by_session.setdefault(request.session, []).append(request)
    texts = [session_text(session, members) for session, members in by_session.items()]
    keyed = [request for request in requests if request.supersede is not None]
    texts += [f"key {(request.supersede or '').strip()}: newest is {request.id}" for request in keyed]
    return [Text("  " + fixed(text, width - 2)) for text in texts]


def session_text(session: str, members: Sequence[Request]) -> str:
    parent = next((f", below {one.parent}" for one in members if one.parent), "")
    running = sum(not one.waits for one in members)
    return f"session {session}{parent}: {running} running, {len(members) - running} waiting"


def ended_row(request: Request, now: float, width: int) -> Text:
    cancelled = request.finish_reason == "cancelled"
    fast = "" if request.latency_ms is None else f"stopped in {milliseconds(request.latency_ms)}"
    ago = "" if request.ended is None else f"{duration(max(0.0, now - request.ended))} ago"
    style = "red" if request.finish_reason == "error" else "magenta" if cancelled else ""
    rest = f"{request.prompt_tokens:,} + {request.generated:,} tokens"
    ago = f"{ago}  on {plain(request.replica)}" if request.replica else ago
    wide_why = max(22, width // 4)
    wide = max(12, min(width // 3, width - wide_why - 22 - cell_len(ago)))
    columns = ((request.id, wide, ""), (why_ended(request), wide_why, style), (fast, 20, "bold"))
    row = Text.assemble("  ", *((fixed(text, size), look) for text, size, look in columns))
    if row.cell_len + 22 + cell_len(ago) <= width:
        row.append(fixed(rest, 22), "dim")
    return row.append(ago, "dim")


def fixed(text: str, width: int) -> str:
    """Return a text that is harmless, and fills its cells exactly; a text that is cut ends with an ellipsis."""
    text = plain(text)
    if cell_len(text) >= width:
        text = set_cell_size(text, max(0, width - 2)) + "…"
    return set_cell_size(text, width)
