"""Tables as text: in Markdown, and in columns for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def line(cells: Iterable[object]) -> str:
    """One row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(columns: Sequence[str], *, text: int = 1) -> list[str]:
    """The first two lines of a Markdown table, of which the first `text` columns are text and the others numbers."""
    return [line(columns), line(["---"] * text + ["---:"] * (len(columns) - text))]


def aligned(rows: Sequence[Sequence[object]]) -> list[str]:
    """A line for each row, in columns that are as wide as they must be."""
    cells = [[str(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
