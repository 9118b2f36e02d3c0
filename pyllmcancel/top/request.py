"""A request, by the events of the feed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyllmcancel.top.text import plain
from pyllmcancel.top.values import finite, whole

Key = tuple[str, str, str]  # replica, owner and id: two owners may have requests of one id
LIVE = ("waiting", "running", "cancelling")
MAX_SLOTS = 1_024  # slots of one request


@dataclass(slots=True)
class Request:
    """The entry of a request, updated by later events. Times are seconds on the server's monotonic clock.

    Attributes
    ----------
    id, session
        The unchanged names, for addresses; they are shown only by `plain`.
    done, generated
        The tokens of the prompt, and of the answer: estimated from the steps, and at the end as the server reports
        them.
    """

    owner: str
    id: str
    status: str
    phase: str
    session: str | None
    parent: str | None
    supersede: str | None
    slots: tuple[int, ...]
    prompt_tokens: int
    done: int
    cached: int
    generated: int
    max_tokens: int | None
    n: int
    finish_reason: str | None
    cancel_reason: str | None
    superseded_by: str | None
    latency_ms: float | None
    error: str | None
    arrived: float | None
    admitted: float | None
    ended: float | None
    replica: str = ""  # empty for a server of one model

    @property
    def key(self) -> Key:
        return self.replica, self.owner, self.id

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def waits(self) -> bool:
        return self.status == "waiting" or (self.status == "cancelling" and self.admitted is None)

    def computed(self, phase: str, n_tokens: int) -> None:
        """Note the tokens that a step has computed of it."""
        self.phase = phase
        if phase != "prefill":
            self.generated += n_tokens
            return
        self.done = min(self.done + n_tokens, self.prompt_tokens)
        if self.done == self.prompt_tokens:
            self.generated += self.n  # the step that ends a prompt samples the first token


def request_of(entry: dict[str, Any]) -> Request:
    """Make a request from an entry; KeyError, TypeError or ValueError if the entry is invalid."""
    times = entry.get("times") or {}
    latency = entry["cancel_latency_ms"]
    limit = entry.get("max_tokens")
    return Request(
        owner=str(entry["owner"]),
        id=str(entry["id"]),
        status=str(entry["status"]),
        phase=str(entry["phase"]),
        session=optional(entry["session"]),
        parent=optional(entry.get("parent_session")),
        supersede=optional(entry["supersede"]),
        slots=tuple(whole(slot) for slot in entry["slots"][:MAX_SLOTS]),
        prompt_tokens=whole(entry["prompt_tokens"]),
        done=whole(entry["prompt_tokens_done"]),
        cached=whole(entry["cached_tokens"]),
        generated=whole(entry["completion_tokens"]),
        max_tokens=None if limit is None else whole(limit),
        n=whole(entry.get("n", 1)),
        finish_reason=optional(entry["finish_reason"]),
        cancel_reason=optional(entry["cancel_reason"]),
        superseded_by=optional(entry.get("superseded_by")),
        latency_ms=None if latency is None else finite(latency),
        error=optional(entry.get("error")),
        arrived=moment(times.get("arrived")),
        admitted=moment(times.get("admitted")),
        ended=moment(times.get("ended")),
    )


def optional(value: Any) -> str | None:
    return None if value is None else str(value)


def moment(value: Any) -> float | None:
    return None if value is None else finite(value)


def why_ended(request: Request) -> str:
    """Return how it ended, in words."""
    match request.finish_reason:
        case "cancelled" if request.superseded_by is not None:
            return f"superseded by {plain(request.superseded_by)}"
        case "cancelled":
            return f"cancelled: {plain(request.cancel_reason)}"
        case "error":
            return f"failed: {plain(request.error)}"
        case "length":
            return "full length"
        case "stop":
            return "finished"
        case other:
            return plain(other)
