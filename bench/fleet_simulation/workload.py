"""Requests of many sessions. Nearly all type in bursts, under a supersede key each; some chat, without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """The behaviour of people. Times are in seconds.

    Attributes
    ----------
    between_bursts, keystrokes, gap, spread, answer
        Of typists: the mean between two bursts, the mean number of requests in one, the median time between two
        of them and its logarithm's deviation, and the mean of what an answer takes that nothing supersedes.
    chatting, between_turns, turn
        The share of chats, the mean time between two of their requests, and the mean of what one takes.
    streaming
        The share of requests that stream.
    """

    sessions: int = 100_000
    between_bursts: float = 480.0
    keystrokes: float = 12.0
    gap: float = 0.2
    spread: float = 0.6
    answer: float = 0.5
    chatting: float = 0.1
    between_turns: float = 90.0
    turn: float = 15.0
    streaming: float = 0.5

    @property
    def n_typing(self) -> int:
        """The number of sessions, from the first on, that type; the others chat."""
        return self.sessions - round(self.sessions * self.chatting)


class Arrival(NamedTuple):
    at: float
    session: int
    typed: bool
    takes: float
    streams: bool


def arrivals(people: People, seconds: float, seed: int) -> list[Arrival]:
    """In the order of time."""
    chance = np.random.default_rng(seed)
    n_chatting = people.sessions - people.n_typing
    typed_at, typing = bursts(people, people.n_typing, seconds, chance)
    turns_at = chance.uniform(0, seconds, chance.poisson(n_chatting * seconds / people.between_turns))
    chatting = people.n_typing + chance.integers(max(n_chatting, 1), size=len(turns_at))
    at = np.concatenate([typed_at, turns_at])
    session = np.concatenate([typing, chatting])
    typed = np.arange(len(at)) < len(typed_at)
    takes = chance.exponential(np.where(typed, people.answer, people.turn))
    streams = chance.random(len(at)) < people.streaming
    order = np.argsort(at, kind="stable")
    columns = (one[order].tolist() for one in (at, session, typed, takes, streams))
    return list(map(Arrival._make, zip(*columns, strict=True)))


def bursts(people: People, n: int, seconds: float, chance: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """When `n` sessions have a keystroke, and which. Some bursts have begun before the first second."""
    before = 5 * people.keystrokes * people.gap
    began = chance.uniform(-before, seconds, chance.poisson(n * (seconds + before) / people.between_bursts))
    lengths = chance.geometric(1 / people.keystrokes, len(began))
    gaps = chance.lognormal(np.log(people.gap), people.spread, lengths.sum())
    first = np.cumsum(lengths) - lengths
    since = np.cumsum(gaps)
    at = np.repeat(began - since[first], lengths) + since
    session = np.repeat(chance.integers(n, size=len(began)), lengths)
    seen = (at >= 0) & (at < seconds)
    return at[seen], session[seen]
