"""The result of a scenario, and its statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from bench.tables import aligned

SAMPLES = 10_000  # drawn by a test or an interval


@dataclass(frozen=True, slots=True)
class Result:
    """A table, and the values that it was made of."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[Any]]
    values: Any = field(default_factory=dict)

    def text(self) -> str:
        cells = [[shown(value) for value in row] for row in self.rows]
        return "\n".join([self.title, *aligned([self.columns, *cells])])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
        case _:
            return str(value)


def interval(
    samples: Sequence[Sequence[float]],
    figure: Callable[..., Any],
    seed: int = 1,
    *,
    paired: bool = False,
) -> tuple[float, float]:
    """Return the 95 % interval of a figure by the bootstrap.

    `figure` takes an array for each of the samples, whose first axis numbers the draws. Of `paired` samples, the
    same places are drawn.
    """
    chance = np.random.default_rng(seed)
    drawn, places = [], None
    for values in map(np.array, samples):
        if places is None or not paired:
            places = chance.integers(0, len(values), (SAMPLES, len(values)))
        drawn.append(values[places])
    low, high = np.percentile(figure(*drawn), [2.5, 97.5])
    return float(low), float(high)


def ratio_of_sums(one: Any, other: Any) -> Any:
    return one.sum(axis=1) / other.sum(axis=1)


class Compared(Protocol):
    """An answer that can be compared with another server's."""

    @property
    def said(self) -> object: ...


def other_answers(found: Sequence[Compared], reference: Sequence[Compared] | None) -> int | None:
    """Return how many answers differ from the reference's; None without a reference."""
    if reference is None or found is reference:
        return None
    return sum(one.said != other.said for one, other in zip(found, reference, strict=True))
