"""The number of tokens to draft, from the measured cost of steps and the learnt share of drafts that are accepted.

A drafted token adds a row to a step. Rows cost less together than alone.

Used by the engine thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

MAX_ROWS = 32
SIZES = (2, 4, 8, 16, 32)  # rows, up to each of which the cost of a further row is measured
N_SAMPLES, N_LEVELS = 9, 5  # of each size, and of all: fewer, so that the level changes before a size does
MIN_SAMPLES = 2  # one alone may be a step that something else slowed down; that size would not be tried again
MAX_AGE = 4096  # steps after which the costs of further rows are measured anew
ASSUMED_COST = 1 / 3  # of a further row, in steps of one row, until some are measured
MIN_GAIN = 1.02  # drafts that gain less are not worth their variance
WINDOW = 40.0  # drafted tokens after which an older one has lost most of its weight
PRIOR_WEIGHT = 3.0  # drafted tokens that a prior counts as
PAUSE = 16  # steps without a draft after which one is tried, where drafts do not pay
PROBED_P = 0.8  # such a draft is as long as would be best if this were the probability
# The time that rejected drafts may cost, in steps without drafts: at first, for each step, and at most. What accepted
# drafts save is added.
FIRST_BUDGET, BUDGET_PER_STEP, MAX_BUDGET = 1.5, 0.005, 8.0


class StepCosts(Protocol):
    """The seconds that a decode step takes, by its number of rows."""

    def of(self, n_rows: int) -> float | None:
        """Return the seconds of a step; None if they are not known yet."""


class RowCosts:
    """The seconds that a decode step takes, by its number of rows from 1 to MAX_ROWS.

    All costs grow with a sequence's length, and when other programs run. So they are kept as the seconds of one row, to
    which steps of every size contribute, and the cost of each further row in such steps. Both are medians, which a slow
    step now and then does not change.
    """

    def __init__(self) -> None:
        self._levels: deque[float] = deque(maxlen=N_LEVELS)
        self._level = 0.0
        self._further = {size: deque[float](maxlen=N_SAMPLES) for size in SIZES}
        self._in_steps: list[float] = []  # what a step costs, in steps of one row, by its rows
        self._n_observed = 0
        self._compare()

    def observe(self, n_rows: int, seconds: float) -> None:
        """Learn from a step that computed one token, or drafted tokens, of each of its sequences."""
        if not 1 <= n_rows <= MAX_ROWS or seconds <= 0.0 or (n_rows > 1 and not self._levels):
            return
        if n_rows > 1:
            samples = next(samples for size, samples in self._further.items() if n_rows <= size)
            samples.append(max(seconds / self._level - 1.0, 0.0) / (n_rows - 1))
            if len(samples) < MIN_SAMPLES:
                return
            self._compare()
        self._levels.append(seconds / self._in_steps[n_rows - 1])
        self._level = _median(self._levels)
        self._n_observed += 1
        if self._n_observed % MAX_AGE == 0:
            for samples in self._further.values():
                samples.clear()
            self._compare()

    def of(self, n_rows: int) -> float | None:
        """Return the seconds of a step; None until a step of one row was observed."""
        if not self._levels or n_rows < 1:
            return None
        if n_rows > MAX_ROWS:
            return self._level * self._in_steps[-1] * n_rows / MAX_ROWS
        return self._level * self._in_steps[n_rows - 1]

    def _compare(self) -> None:
        """Compare steps of all sizes with one of one row. Sizes that are not measured count as cheap, and get tried."""
        self._in_steps, further = [1.0], ASSUMED_COST
        for size, samples in self._further.items():
            further = _median(samples) if len(samples) >= MIN_SAMPLES else min(further, ASSUMED_COST)
            self._in_steps += [1.0 + further * n for n in range(len(self._in_steps), size)]


class Acceptance:
    """An estimate of the probability that the next drafted token is accepted, for one request and source of drafts.

    The `prior` is the estimate before anything is learnt, and counts as `weight` drafted tokens.
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

    A draft of k tokens, each accepted with probability p, gives 1 + p + ... + p^k tokens; `ps` has the p of each answer
    that gets a draft of this length. Zero is returned if drafts gain less than MIN_GAIN, or if costs are not known.
    `n_other_rows` are the step's rows of other sequences, and `n_other_tokens` the tokens that it gives them: a larger
    step delays those.
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
        rate = n_tokens / (costs.of(n_rows) or without)
        if rate > best_rate:
            best, best_rate = k, rate
    return Best(best, 1.0 - rate_without / best_rate if best else 0.0)


def price_of(n_drafted: int, costs: StepCosts, n_rows: int) -> float:
    """Return the delay that drafted tokens are to a step of `n_rows`, in such steps. Each of its sequences has it."""
    before, after = costs.of(n_rows), costs.of(n_rows + n_drafted)
    return max(after / before - 1.0, 0.0) if before and after else 0.0


class LossBudget:
    """The time that a request's drafts may lose, in steps without drafts: what rejected ones took is paid from here."""

    def __init__(self) -> None:
        self._left = FIRST_BUDGET

    def count_step(self) -> None:
        self._add(BUDGET_PER_STEP)

    def affords(self, price: float) -> bool:
        return price <= self._left

    def settle(self, price: float, n_accepted: int) -> None:
        """Pay for a draft of which `n_accepted` tokens saved a step each."""
        self._add(n_accepted - price)

    def _add(self, n_steps: float) -> None:
        self._left = min(self._left + n_steps, MAX_BUDGET)


class DraftLength:
    """The lengths of a request's drafts from one source.

    Where drafts do not pay, one is tried now and then, in case drafts pay again. No draft is longer than the budget
    allows if all of it is rejected. So a request is not noticeably slower than without drafts.
    """

    def __init__(self, acceptance: Acceptance, budget: LossBudget | None = None) -> None:
        self.acceptance = acceptance
        self.budget = budget or LossBudget()
        self._price = 0.0  # of the draft that was chosen last
        self._n_chosen = 0
        self._n_idle = 0  # steps since the last draft

    def choose(self, costs: StepCosts, most: int, *, n_other_rows: int = 0, n_other_tokens: float = 0.0) -> int:
        """Return the number of tokens to draft in the next step, of `most` that the source has.

        The other parameters are those of `best_draft`. Call once in each step in which the source has a draft.
        """
        return choose_length([self], costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)

    @property
    def p_to_try(self) -> float:
        """The probability by which a length is chosen."""
        return self.acceptance.p if self._n_idle < PAUSE else max(self.acceptance.p, PROBED_P)

    def take(self, n_tokens: int, price: float) -> None:
        """Take a draft whose length was chosen."""
        self._n_idle = 0 if n_tokens else self._n_idle + 1
        self._price, self._n_chosen = price, n_tokens

    def saved(self, costs: StepCosts, most: int, *, n_other_rows: int = 0, n_other_tokens: float = 0.0) -> float:
        """Return the share of the time without drafts that drafts within the budget would save, by what is known."""
        return affordable([(self.acceptance.p, self.budget)], costs, most, n_other_rows, n_other_tokens)[0].saved

    def learn_nothing(self) -> None:
        """Learn that the source gave no token, for which it took the time of one."""
        self.acceptance.learn(1, 0)
        self.budget.settle(self._price / max(1, self._n_chosen), 0)

    def learn(self, n_drafted: int, n_accepted: int) -> None:
        """Learn what became of the draft that was chosen last. Not called if the step was aborted."""
        if not n_drafted:
            return
        self.acceptance.learn(n_drafted, n_accepted)
        self.budget.settle(self._price, n_accepted)
        if n_accepted == n_drafted:
            self._n_idle = PAUSE  # another one is tried at once


def affordable(
    tried: Sequence[tuple[float, LossBudget]], costs: StepCosts, most: int, n_other_rows: int, n_other_tokens: float
) -> tuple[Best, float]:
    """Return the best length for these probabilities that all budgets afford, and its price, which each pays: all
    answers wait for the step.
    """
    ps = [p for p, _ in tried]
    while (best := best_draft(ps, costs, most, n_other_rows=n_other_rows, n_other_tokens=n_other_tokens)).n_tokens:
        price = price_of(len(ps) * best.n_tokens, costs, n_other_rows + len(ps)) * (1.0 + n_other_tokens)
        if all(budget.affords(price) for _, budget in tried):
            return best, price
        most = best.n_tokens - 1
    return best, 0.0


def choose_length(
    lengths: Sequence[DraftLength], costs: StepCosts, most: int, *, n_other_rows: int = 0, n_other_tokens: float = 0.0
) -> int:
    """As `DraftLength.choose`, for drafts of several answers, which have the same length."""
    tried = [(length.p_to_try, length.budget) for length in lengths]
    best, price = affordable(tried, costs, most, n_other_rows, n_other_tokens)
    for length in lengths:
        length.take(best.n_tokens, price)
    return best.n_tokens


def _median(values: Iterable[float]) -> float:
    """Return the median, of an even number of values the lower one: steps are slow now and then, never fast."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
