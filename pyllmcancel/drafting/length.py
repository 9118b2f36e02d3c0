"""The number of tokens to draft, from the measured cost of steps and the learnt share of drafts that are accepted.

A drafted token adds a row to a step. Rows cost less together than alone, in tiles of kernels: on a CPU four rows cost
about two of one, and three may cost more than four. So costs are measured for each number of rows.

Used by the engine thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from pyllmcancel.drafting.loss_budget import LossBudget

MAX_ROWS = 32
TILE = 4  # rows; smaller numbers of rows say little about what a tile costs
FEW = 2  # drafts of more tokens fill a tile, or are all that the source has
N_SAMPLES = 9  # of each number of rows
MIN_SAMPLES = 2  # one alone may be a step that something else slowed down; that number of rows would not be tried again
MAX_AGE = 4096  # steps after which a number of rows that did not occur is measured anew
N_LEVELS = 5  # steps of any number of rows: fewer, so that the level changes before a shape does
# The assumed cost of a further row, in steps of one row, until a tile is measured.
ASSUMED_SLOPE = 1 / 3
MIN_GAIN = 1.02  # drafts that gain less are not worth their variance
WINDOW = 40.0  # drafted tokens after which an older one has lost most of its weight
PRIOR_WEIGHT = 3.0  # drafted tokens that a prior counts as
FIRST_PAUSE, LONGEST_PAUSE = 16, 1024  # steps without a draft, where drafts do not pay
PROBED_P = 0.7  # a probe is as long as would be best if this were the probability, unless more is known of the source


class StepCosts(Protocol):
    """The seconds that a decode step takes, by its number of rows."""

    def of(self, n_rows: int) -> float | None:
        """Return the seconds of a step; None if they are not known yet."""


class RowCosts:
    """The seconds that a decode step takes, by its number of rows from 1 to MAX_ROWS.

    All costs grow with a sequence's length, and when other programs run. So a cost is the product of a level, to which
    steps of every size contribute, and a shape, which has a value for each size. Both are medians, which a slow step
    now and then does not change.
    """

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=N_LEVELS)
        self._level = 0.0
        self._samples: dict[int, deque[float]] = {}
        self._measured: dict[int, float] = {}  # by the number of rows: the median of the samples
        self._last_seen: dict[int, int] = {}  # by the number of rows, counted in observed steps
        self._n_observed = 0
        self._shape: list[float] = []  # of each number of rows, the first one's at index 0

    def observe(self, n_rows: int, seconds: float) -> None:
        """Learn from a step that computed one token, or drafted tokens, of each of its sequences."""
        if not 1 <= n_rows <= MAX_ROWS or seconds <= 0.0 or (n_rows > 1 and not self._shape):
            return
        if not self._shape:
            self._level = seconds
        self._n_observed += 1
        self._last_seen[n_rows] = self._n_observed
        samples = self._samples.setdefault(n_rows, deque(maxlen=N_SAMPLES))
        samples.append(seconds / self._level)
        if n_rows > 1 and len(samples) < MIN_SAMPLES:
            return
        median = _median(samples)
        if self._measured.get(n_rows) != median:
            self._measured[n_rows] = median
            self._reshape()
        self._levels.append(seconds / median)
        self._level = _median(self._levels)
        if self._n_observed % MAX_AGE == 0:
            self._forget_old()

    def of(self, n_rows: int) -> float | None:
        """Return the seconds of a step; None until a step of one row was observed."""
        if not self._shape or n_rows < 1:
            return None
        if n_rows > MAX_ROWS:
            return self._level * self._shape[-1] * n_rows / MAX_ROWS
        return self._level * self._shape[n_rows - 1]

    def _reshape(self) -> None:
        self._shape = [self._shape_of(n) for n in range(1, MAX_ROWS + 1)]

    def _forget_old(self) -> None:
        for n_rows, step in list(self._last_seen.items()):
            if n_rows > 1 and step <= self._n_observed - MAX_AGE:
                del self._last_seen[n_rows], self._samples[n_rows]
                self._measured.pop(n_rows, None)
        self._reshape()

    def _shape_of(self, n_rows: int) -> float:
        if n_rows in self._measured:
            return self._measured[n_rows]
        # Whole tiles may be cheaper than fewer rows, so they are not judged by these.
        tiles = [n for n in self._measured if n == 1 or n % TILE == 0]
        sizes = self._measured if n_rows % TILE else tiles
        above = min((n for n in self._measured if n > n_rows), default=None)
        if above is None:
            return min(self._beyond(n_rows, max(self._measured)), self._beyond(n_rows, max(sizes)))
        below = max(n for n in sizes if n < n_rows)
        share = (n_rows - below) / (above - below)
        return (1.0 - share) * self._measured[below] + share * self._measured[above]

    def _beyond(self, n_rows: int, largest: int) -> float:
        """Extrapolate. Up to twice the largest measured size, rows are taken to be cheap, so that sizes get tried."""
        one = self._measured[1]
        base = largest if largest >= TILE else 1
        if base > 1:
            slope = max(self._measured[base] - one, 0.0) / (base - 1)
        else:
            # Two rows that cost little promise cheap tiles; two that cost much say nothing.
            slope = ASSUMED_SLOPE * one
            if largest > 1:
                slope = min(slope, max(self._measured[largest] - one, 0.0) / (largest - 1))
        n_cheap = min(n_rows, 2 * base) - base if base > 1 else 0
        cost = self._measured[base] + slope * (n_rows - base - 0.5 * n_cheap)
        return max(cost, self._measured[largest])


class Acceptance:
    """An estimate of the probability that the next drafted token is accepted, for one request and source of drafts.

    Parameters
    ----------
    prior
        The estimate before anything is learnt.
    weight
        The number of drafted tokens that the prior counts as.
    """

    def __init__(self, prior: float, weight: float = PRIOR_WEIGHT) -> None:
        self._n_accepted = prior * weight
        self._n_rejected = (1.0 - prior) * weight

    def learn(self, n_drafted: int, n_accepted: int) -> None:
        """Learn from a draft. Tokens after the first rejected one were not tried, and say nothing."""
        for _ in range(n_accepted):
            self._try(accepted=True)
        if n_accepted < n_drafted:
            self._try(accepted=False)

    @property
    def p(self) -> float:
        return self._n_accepted / (self._n_accepted + self._n_rejected)

    def _try(self, *, accepted: bool) -> None:
        decay = 1.0 - 1.0 / WINDOW
        self._n_accepted = decay * self._n_accepted + accepted
        self._n_rejected = decay * self._n_rejected + (not accepted)


class Best(NamedTuple):
    """The number of tokens to draft, and the share of the time without drafts that such drafts save."""

    n_tokens: int
    saved: float


def best_draft(
    ps: Sequence[float], costs: StepCosts, most: int, *, n_other_rows: int = 0, n_other_tokens: float = 0.0
) -> Best:
    """Return the number of tokens to draft, from 0 to `most`, that gives the most tokens per second.

    A draft of k tokens, each accepted with probability p, gives 1 + p + ... + p^k tokens. Zero is returned if drafts
    gain less than MIN_GAIN, or if costs are not known.

    Parameters
    ----------
    ps
        The probability with which the next drafted token is accepted, for each answer that gets a draft of this length.
    n_other_rows
        The step's rows of other sequences, their drafts included.
    n_other_tokens
        The tokens that the step gives to other sequences, which a larger step delays. Zero: only these answers count.
    """
    n_answers = len(ps)
    without = costs.of(n_other_rows + n_answers)
    if without is None:
        return Best(0, 0.0)
    n_tokens = n_other_tokens + n_answers
    rate_without = n_tokens / without
    best, best_rate = 0, MIN_GAIN * rate_without
    limit = min(most, (MAX_ROWS - n_other_rows) // n_answers - 1)
    for k in range(1, limit + 1):
        n_tokens += sum(p**k for p in ps)
        n_rows = n_other_rows + n_answers * (1 + k)
        # Few numbers of rows are chosen from, so that each of them is soon measured.
        if FEW < k < limit and n_rows % TILE:
            continue
        rate = n_tokens / (costs.of(n_rows) or without)
        if rate > best_rate:
            best, best_rate = k, rate
    return Best(best, 1.0 - rate_without / best_rate if best else 0.0)


class DraftLength:
    """The lengths of a request's drafts from one source.

    Where drafts do not pay, one is tried after 16 steps, 32 steps, 64 ..., in case drafts pay again. No draft is longer
    than the budget allows if all of it is rejected. So a request is not noticeably slower than without drafts.
    """

    def __init__(self, acceptance: Acceptance, budget: LossBudget | None = None, *, probed_p: float = PROBED_P) -> None:
        self.acceptance = acceptance
        self._probed_p = probed_p
        self._budget = budget or LossBudget()
        self._price = 0.0  # of the draft that was chosen last
        self._n_chosen = 0
        self._pause = FIRST_PAUSE
        self._n_idle = 0  # steps since the last draft
        self._probes = False  # if the last draft was tried although drafts did not seem to pay

    def choose(self, costs: StepCosts, most: int, *, n_other_rows: int = 0, n_other_tokens: float = 0.0) -> int:
        """Return the number of tokens to draft in the next step, of `most` that the source has.

        The other parameters are those of `best_draft`. Call once in each step in which the source has a draft.
        """
        self._budget.count_step()

        def best(p: float, most: int) -> int:
            return best_draft([p], costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens).n_tokens

        k = best(self.acceptance.p, most)
        self._probes = k == 0
        if self._probes and self._n_idle >= self._pause:
            k = best(self._probed_p, most)
        while k and not self._budget.affords(price := self._price_of(k, costs, n_other_rows, n_other_tokens)):
            k = best(max(self.acceptance.p, self._probed_p), k - 1)
        if k:
            self._price, self._n_chosen = price, k
        self._n_idle = 0 if k else self._n_idle + 1
        return k

    def affords(self, price: float) -> bool:
        """Return whether the budget allows a draft of this price, in steps."""
        return self._budget.affords(price)

    def take(self, n_tokens: int, price: float) -> None:
        """Take a draft whose length was chosen elsewhere, as `choose` does."""
        self._probes = False
        self._price, self._n_chosen, self._n_idle = price, n_tokens, 0

    def saved(self, costs: StepCosts, most: int, *, n_other_rows: int = 0, n_other_tokens: float = 0.0) -> float:
        """Return the share of the time without drafts that drafts would save, by what is known.

        Call once in each step, if not `choose`. Drafts that the budget does not allow save nothing yet.
        """
        self._budget.count_step()
        p = [self.acceptance.p]
        best = best_draft(p, costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)
        while best.n_tokens and not self.affords(self._price_of(best.n_tokens, costs, n_other_rows, n_other_tokens)):
            best = best_draft(p, costs, best.n_tokens - 1, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)
        return best.saved

    def learn_nothing(self) -> None:
        """Learn that the source gave no token, for which it took the time of one."""
        self.acceptance.learn(1, 0)
        self._budget.settle(self._price / max(1, self._n_chosen), 0)
        if self._probes:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def learn(self, n_drafted: int, n_accepted: int) -> None:
        """Learn what became of the draft that was chosen last. Not called if the step was aborted."""
        if n_drafted == 0:
            return
        self.acceptance.learn(n_drafted, n_accepted)
        self._budget.settle(self._price, n_accepted)
        if not self._probes:
            return
        if n_accepted:
            # The next step probes again.
            self._pause, self._n_idle = FIRST_PAUSE, FIRST_PAUSE
        else:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    @staticmethod
    def _price_of(k: int, costs: StepCosts, n_other_rows: int, n_other_tokens: float) -> float:
        """Return the delay by `k` more rows, in steps without them. Each sequence of the step has it."""
        without, drafting = costs.of(n_other_rows + 1), costs.of(n_other_rows + 1 + k)
        assert without is not None
        assert drafting is not None
        return max(drafting / without - 1.0, 0.0) * (1.0 + n_other_tokens)


def _median(values: Iterable[float]) -> float:
    """Return the median, of an even number of values the lower one: steps are slow now and then, never fast."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
