"""A progress bar with a count of the requests' ends."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyllmcancel.bench.exchange import Exchange

COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[endings]}"))


class ProgressBar(Progress):
    """A progress bar, on a terminal only: a log file has no use for it. Without a console it shows nothing."""

    def __init__(self, console: Console | None = None) -> None:
        disable = console is None or not console.is_terminal
        super().__init__(*COLUMNS, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=disable)
        self._endings: Counter[str] = Counter()

    def begin(self, text: str, total: int) -> None:
        """Begin `total` exchanges; with 0 they are not counted."""
        self.end()
        self._endings.clear()
        self.add_task(text, total=total or None, endings="")

    def count(self, exchange: Exchange) -> None:
        """Count one exchange that has ended."""
        self._endings[str(exchange.outcome)] += 1
        shown = ", ".join(f"{count} {name}" for name, count in sorted(self._endings.items()))
        for task in self.tasks[-1:]:
            self.update(task.id, advance=1, endings=shown)

    def end(self) -> None:
        """End the bar: no more exchanges will be counted."""
        for task in self.tasks[-1:]:
            self.stop_task(task.id)
            if not task.total:
                self.update(task.id, visible=False)
