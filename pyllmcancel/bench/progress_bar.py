"""A progress bar with a count of how the requests ended."""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pyllmcancel.bench.client import Exchange


class ProgressBar:
    """Shown on a terminal only; a log file has no use for it."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[endings]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._endings: Counter[str] = Counter()
        self._current: TaskID | None = None

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, text: str, total: int) -> None:
        self.end()
        self._endings.clear()
        self._current = self._progress.add_task(text, total=total or None, endings="")

    def advance(self, exchange: Exchange) -> None:
        if self._current is not None:
            self._endings[str(exchange.outcome)] += 1
            shown = ", ".join(f"{count} {name}" for name, count in sorted(self._endings.items()))
            self._progress.update(self._current, advance=1, endings=shown)

    def end(self) -> None:
        if self._current is not None:
            self._progress.stop_task(self._current)
            if not self._progress.tasks[self._current].total:
                self._progress.update(self._current, visible=False)
            self._current = None
