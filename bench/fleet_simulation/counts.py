"""The counts of a simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counts:
    """The counts of one scenario.

    Attributes
    ----------
    moved
        Requests that went elsewhere than the one before of their session, by the reason.
    movers
        The sessions of these.
    would_move
        Sessions whose next request would, at the end.
    superseding
        Requests that came while an older one of their key was live.
    missed
        Those of them that went to another replica than the older one.
    lived_on
        Seconds for which these older ones computed beside the newer ones, in all.
    refused
        Requests that found no replica.
    cut
        Requests that ended with their replica, or with their balancer.
    sent_again
        Requests whose connection was refused.
    on_drained
        Requests that a drained replica still had, and those of the last ten seconds.
    """

    requests: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    movers: set[int] = field(default_factory=set)
    would_move: int = 0
    superseding: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    lived_on: float = 0.0
    refused: int = 0
    cut: int = 0
    sent_again: int = 0
    on_drained: int = 0
    late_on_drained: int = 0
    ids_forgotten: int = 0
    names_forgotten: int = 0
    not_noted: int = 0
