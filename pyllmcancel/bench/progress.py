"""A progress bar with a count of how the requests ended."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pyllmcancel.bench.client import Exchange


class ProgressBar:
    """Shown on a terminal only; a log file has no use for it. Without a console it shows nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[endings]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=console is None or not console.is_terminal,
        )
        self._endings: Counter[str] = Counter()

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, text: str, total: int) -> None:
        """`total` exchanges follow; 0: they are not counted."""
        self.end()
        self._endings.clear()
        self._progress.add_task(text, total=total or None, endings="")

    def advance(self, exchange: Exchange) -> None:
        """One of them has ended."""
        self._endings[str(exchange.outcome)] += 1
        shown = ", ".join(f"{count} {name}" for name, count in sorted(self._endings.items()))
        for task in self._progress.tasks[-1:]:
            self._progress.update(task.id, advance=1, endings=shown)

    def end(self) -> None:
        """Nothing more comes of what has begun."""
        for task in self._progress.tasks[-1:]:
            self._progress.stop_task(task.id)
            if not task.total:
                self._progress.update(task.id, visible=False)
