"""The results of a scenario: figures, tables, and checks that pass or fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.tables import aligned


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to hold."""

    text: str
    passed: bool
    detail: str = ""


@dataclass(slots=True)
class Report:
    """Collected while a scenario runs; it has passed when every check has."""

    name: str
    checks: list[Check] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    tables: list[tuple[tuple[str, ...], list[tuple[Any, ...]]]] = field(default_factory=list)

    def check(self, text: str, passed: bool, detail: object = "") -> None:
        """Record whether `text` holds; `detail` says what was found instead."""
        self.checks.append(Check(text, bool(passed), str(detail)))

    def figure(self, name: str, value: object) -> None:
        self.figures[name] = value

    def table(self, header: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
        self.tables.append((header, list(rows)))

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        return {
            "scenario": self.name,
            "passed": self.passed,
            "figures": self.figures,
            "checks": [asdict(check) for check in self.checks],
            "tables": [{"header": header, "rows": rows} for header, rows in self.tables],
        }

    def __str__(self) -> str:
        lines = [f"== {self.name}"]
        for header, rows in self.tables:
            lines += [f"  {line}" for line in aligned([header, *rows])]
        lines += [f"  {name}: {_shown(value)}" for name, value in self.figures.items()]
        for check in self.checks:
            detail = f" ({check.detail})" if check.detail and not check.passed else ""
            lines.append(f"  [{'ok' if check.passed else 'NOT'}] {check.text}{detail}")
        return "\n".join([*lines, f"{'PASS' if self.passed else 'FAIL'} {self.name}"])


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return str(value)
