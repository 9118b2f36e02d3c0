"""The server's step trace, put together from what ``GET /v1/steps`` shows of it at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PAGE = 1024  # what the server keeps
SLACK = 32


@dataclass(frozen=True, slots=True)
class Step:
    """One step: times in seconds on the monotonic clock, tokens by request, and who was past its prompt."""

    number: int
    began: float
    ended: float
    status: str
    tokens: dict[str, int]
    decoding: frozenset[str]


class StepTrace:
    """All steps since the trace began, without a gap."""

    def __init__(self, n_steps: int) -> None:
        self._steps: dict[int, Step] = {}
        self._seen = n_steps  # everything up to this number is here, or was before the trace

    def missing(self, n_steps: int) -> int:
        """How many of the newest steps to ask for; RuntimeError if the server has forgotten some of them."""
        wanted = n_steps - self._seen
        if wanted > PAGE:
            raise RuntimeError(f"{wanted - PAGE} steps were not seen: ask more often")
        # Some more, for those that are made between the two questions.
        return min(PAGE, wanted + SLACK)

    def add(self, page: dict[str, Any]) -> None:
        """Take an answer of ``/v1/steps``."""
        for record in page["data"]:
            if record["number"] > self._seen and record["number"] not in self._steps:
                step = read_step(record)
                self._steps[step.number] = step
        while self._seen + 1 in self._steps:
            self._seen += 1

    @property
    def steps(self) -> list[Step]:
        return [self._steps[number] for number in sorted(self._steps)]

    def of(self, request_id: str) -> list[Step]:
        return [step for step in self.steps if request_id in step.tokens]

    def aborted(self) -> list[Step]:
        return [step for step in self.steps if step.status != "ok"]

    def contains_any(self, request_ids: Iterable[str]) -> list[str]:
        """Which of the requests any step contained."""
        launched = {request_id for step in self._steps.values() for request_id in step.tokens}
        return sorted(launched.intersection(request_ids))

    def quiet_after(self, request_id: str, moment: float) -> float:
        """Seconds from `moment` until nothing was computed for the request any more; 0 if nothing was then."""
        return max([0.0, *(step.ended - moment for step in self.of(request_id))])


def read_step(record: dict[str, Any]) -> Step:
    tokens: dict[str, int] = {}
    for entry in record["sequences"]:
        tokens[entry["request"]] = tokens.get(entry["request"], 0) + entry["n_tokens"]
    began = record["started_at"]
    decoding = frozenset(entry["request"] for entry in record["sequences"] if entry["phase"] == "decode")
    return Step(record["number"], began, began + record["seconds"], record["status"], tokens, decoding)
