"""The screen: a pure function from the state, and the user's choices, to lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from pyllmcancel.top.choices import Choices, Size, Times
from pyllmcancel.top.heading import header, replica_lines
from pyllmcancel.top.lanes import Axis, drawn, lanes, legend
from pyllmcancel.top.replicas import Replicas
from pyllmcancel.top.rows import ended_row, group_rows, live_row
from pyllmcancel.top.state import State
from pyllmcancel.top.text import plain

MAX_LANES = 64
HELP = (
    "up, down, j, k    select a request",
    "r                 show the slots and figures of the next replica; lists are of all replicas",
    "c                 cancel the selected request",
    "s                 cancel its session, and the sessions below it",
    "?                 this page",
    "q, Ctrl-C         quit; the server and its requests continue",
    "",
    "A lane is the work of a slot; each column is a quarter of a second, the newest at the right.",
    "cut off           a request was cancelled, or a step was aborted for a cancel",
    "held              a request has the slot, but no step is known yet: it waits, or a step is under way",
    "not seen          the connection was lost, or the server was away",
    "",
    "stopped           from the cancel until nothing more was computed for the request",
    "wasted            tokens computed for requests that were cancelled before they were used",
    "saved             estimate of the tokens that the cancels saved",
    "supersede key     the key under which at most one request lives: a newer one cancels the older one",
)


@dataclass(slots=True)
class Section:
    """A title, the rows below it, and the number of rows to draw if there is not room for all."""

    title: Text
    rows: list[Text]
    least: int
    shown: int = 0
    keep: int = 0  # a row that must be among those shown


def draw(replicas: Replicas, choices: Choices, times: Times, size: Size) -> list[Text]:
    """Return lines that are no wider than the screen, and as many as it has."""
    width, height = size
    state = replicas.shown
    head = [*header(state, choices, times.now, width), *(replica_lines(replicas, width) if replicas.named else [])]
    foot = footer(choices, several=replicas.named) if choices.keys else []
    if choices.help:
        body = [Text(), *(Text(f"  {line}") for line in HELP)]
    elif not state.known:
        body = [Text(), Text("  waiting for the server's first event", "dim")]
    else:
        room = None if height is None else height - len(head) - len(foot)
        body = fitted(sections(replicas, choices, times, width), room)
    if height is not None:
        room = max(0, height - len(head) - len(foot))
        body = body[:room] + [Text()] * (room - len(body))
    return [cropped(line, width) for line in (*head, *body, *foot)][:height]


def cropped(line: Text, width: int) -> Text:
    line.truncate(width, overflow="crop")
    return line


def footer(choices: Choices, *, several: bool) -> list[Text]:
    keys = "up/down select   c cancel   s cancel its session   ? help   q quit"
    if several:
        keys = f"r replica   {keys}"
    return [Text(plain(choices.message), "bold"), Text("? back   q quit" if choices.help else keys, "dim")]


def sections(replicas: Replicas, choices: Choices, times: Times, width: int) -> list[Section]:
    state, running, waiting = replicas.shown, replicas.running(), replicas.waiting()
    requests = [*running, *waiting]
    selected = next((i for i, request in enumerate(requests) if request.key == choices.selected), 0)
    groups = group_rows(requests, width)
    slots = f"Slots of {plain(state.replica)}" if state.replica else "Slots"
    return [
        Section(title(slots, legend(choices.glyphs)), lane_rows(state, choices, times, width), 4),
        Section(
            title("Requests", Text(f"{len(running)} running, {len(waiting)} waiting", "dim")),
            [live_row(request, request.key == choices.selected, times.now, width) for request in requests],
            4,
            keep=selected,
        ),
        *([Section(title("Sessions and supersede keys"), groups, 1)] if groups else []),
        Section(title("Ended"), [ended_row(request, times.now, width) for request in reversed(replicas.ended())], 4),
    ]


def title(name: str, more: Text | None = None) -> Text:
    return Text.assemble((name, "bold underline"), "  ", more or "")


def lane_rows(state: State, choices: Choices, times: Times, width: int) -> list[Text]:
    slots = range(min(state.server.n_slots, MAX_LANES))
    name_width = max(12, min(40, width // 4))
    axis = Axis.until(times.now, max(1, width - name_width - 7))
    holders = {slot: request for request in state.running() for slot in request.slots}
    rows = []
    for slot, row in zip(slots, lanes(state, slots, axis, times.heard), strict=True):
        holder = "" if slot not in holders else plain(holders[slot].id)
        rows.append(Text.assemble(f"{slot:>4} ", drawn(row, choices.glyphs), f"  {holder}"))
    return rows


# -- fitting -----------------------------------------------------------------------------------------------------------


def fitted(found: Sequence[Section], room: int | None) -> list[Text]:
    """Return the sections one below the other. If there is not room for all rows, each says how many it leaves out."""
    share(found, room)
    lines = []
    for section in found:
        if room is not None and section.shown == 0 and section.rows:
            continue
        first = max(0, min(section.keep - section.shown + 1, len(section.rows) - section.shown))
        hidden = len(section.rows) - section.shown
        heading = section.title.copy()
        if hidden > 0:
            heading.append(f"  ({hidden} more)", "dim")
        lines += [heading, *section.rows[first : first + section.shown]]
    return lines


def share(found: Sequence[Section], room: int | None) -> None:
    """Share the lines among the sections: the minimum first, then in turns."""
    for section in found:
        section.shown = len(section.rows)
    if room is None:
        return
    room -= len(found)
    for section in found:
        section.shown = max(0, min(len(section.rows), section.least, room))
        room -= section.shown
    while room > 0 and any(section.shown < len(section.rows) for section in found):
        for section in found:
            if room > 0 and section.shown < len(section.rows):
                section.shown += 1
                room -= 1
