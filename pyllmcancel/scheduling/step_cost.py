"""The time that a step takes, learnt from measured steps, and how large a prefill chunk should be.

A step of n tokens takes about ``fixed + per_token * n`` seconds: weights are read once, arithmetic grows with n.

An aborted step is lost whole. Where each cancelled prompt is followed by one that begins as it did, sooner than a step
takes, no step would ever be finished: an abort halves the chunks, and they are doubled when two in a row were computed.
"""

from __future__ import annotations

import math

DECAY = 0.9
# The weight of a step that took longer than foreseen, unless several in a row did: other programs add to a step's time
# now and then, and chunks that shrink each time would make prompts slower still.
SLOW_WEIGHT = 0.25
SLOW_IN_A_ROW = 3
EFFICIENT_OVERHEAD = 0.05  # alone: chunks whose fixed cost is at most this share
TILE = 64  # tokens: alone, chunks are whole multiples, so that steps of few sizes are measured
ROWS = 8  # that kernels of matrix products take at once
SMALLEST_CHUNK = 8
SMALLEST_AFTER_ABORTS = TILE // 4  # smaller steps are mostly fixed cost
FINISHED_IN_A_ROW = 2  # before chunks grow: one that was aborted for its size would be tried again at once
CHEAPEST = 1e-9  # seconds a token; chunks are sized by dividing by it


class StepCostModel:
    """An affine fit of step time over tokens, in which older steps count less and less.

    Attributes
    ----------
    most
        Tokens that a chunk may have, so that it is likely to be finished. Infinite while no steps are aborted.
    """

    def __init__(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0
        self._n_slow = 0
        self.most = math.inf
        self._n_finished = 0  # of chunks as large as they may be

    def aborted(self, n_tokens: int) -> None:
        """A step of so many tokens was aborted."""
        if n_tokens > SMALLEST_AFTER_ABORTS:
            self.most, self._n_finished = halved(n_tokens), 0

    def observe(self, n_tokens: int, seconds: float) -> None:
        """A step was computed."""
        if n_tokens >= self.most:
            self._n_finished += 1
            if self._n_finished == FINISHED_IN_A_ROW:
                self.most, self._n_finished = 2 * self.most, 0
        slow = self.known and seconds > self.of(n_tokens)
        self._n_slow = self._n_slow + 1 if slow else 0
        weight = SLOW_WEIGHT if 0 < self._n_slow < SLOW_IN_A_ROW else 1.0
        decay = 1.0 - weight * (1.0 - DECAY)
        self._weight = self._weight * decay + weight
        self._n = self._n * decay + weight * n_tokens
        self._nn = self._nn * decay + weight * n_tokens * n_tokens
        self._t = self._t * decay + weight * seconds
        self._nt = self._nt * decay + weight * n_tokens * seconds

    def fit(self) -> tuple[float, float]:
        """(fixed, per_token) in seconds; (0, 1) before anything was observed."""
        if self._weight == 0.0:
            return 0.0, 1.0
        spread = self._weight * self._nn - self._n * self._n
        # Steps of one size say nothing about the fixed part.
        if spread <= 1e-6 * self._weight * self._nn:
            return 0.0, max(self._t / self._n, CHEAPEST)
        per_token = (self._weight * self._nt - self._n * self._t) / spread
        fixed = (self._t - per_token * self._n) / self._weight
        if per_token <= 0.0:
            return self._t / self._weight, CHEAPEST
        return max(fixed, 0.0), max(per_token, CHEAPEST)

    def of(self, n_tokens: int) -> float:
        """Seconds that a step of so many tokens takes."""
        fixed, per_token = self.fit()
        return fixed + per_token * n_tokens

    @property
    def known(self) -> bool:
        return self._weight > 0.0


def halved(n_tokens: int) -> int:
    """Half of a chunk, in whole tiles, or a half or a quarter of one: what is between takes as long as a tile."""
    half = n_tokens // 2
    if half >= TILE:
        return half - half % TILE
    return TILE // 2 if half > SMALLEST_AFTER_ABORTS else SMALLEST_AFTER_ABORTS


def chunk_size(
    cost: StepCostModel,
    *,
    n_decodes: int,
    n_batch: int,
    itl_target: float,
    max_step: float,
    mixed: bool = False,
    tiled: bool = True,
) -> int:
    """Most tokens of the next step that computes prompts; decodes in the same step, if `mixed`, are to be taken off.

    Alone: the smallest whole tiles that are efficient, within `max_step` seconds, but one at least. While `n_decodes`
    sequences decode: as many as keep the time from one of their tokens to the next, which is this step and a decode
    step, within `itl_target`, but never so few that prefill loses half its speed.

    Not `tiled` (any device but a CPU), alone: as many as `max_step` allows. Small steps would not show what large ones
    cost, and would stay small; a cancel does not wait for the end of a large one.
    """
    if not cost.known:
        return int(min(n_batch, cost.most, TILE if tiled else n_batch))
    fixed, per_token = cost.fit()
    if n_decodes:
        theirs = 0.0 if mixed else fixed + per_token * n_decodes
        # Half of the time goes into the chunk's own tokens.
        at_least = max((fixed + theirs) / per_token, SMALLEST_CHUNK) + (n_decodes if mixed else 0)
        within = (itl_target - theirs - fixed) / per_token
        n_tokens = max(within - within % ROWS, at_least)
    else:
        efficient = fixed / per_token * (1.0 / EFFICIENT_OVERHEAD - 1.0)
        most = (max_step - fixed) / per_token
        n_tokens = max(TILE, min(efficient, most) if tiled else most)
        n_tokens -= n_tokens % TILE
    return max(1, int(min(n_batch, n_tokens, cost.most)))


def with_tail(chunk: int, n_pending: int, *, n_others: int, n_batch: int) -> int:
    """How many of a prompt's `n_pending` tokens to compute, where `chunk` may be, in a step with `n_others` tokens.

    A rest shorter than a tile goes with the chunk before it, which saves a step.
    """
    in_tiles = chunk > 0 and n_others + chunk >= TILE
    if in_tiles and n_pending < chunk + TILE and n_others + n_pending <= n_batch:
        return n_pending
    return max(0, min(chunk, n_pending))


def even_part(chunk: int, n_pending: int) -> int:
    """How many of a prompt's `n_pending` tokens to compute beside decodes, where `chunk` may be: parts of like sizes.

    None is longer than a chunk, which `itl_target` allows, and the last one is no step of a few tokens.
    """
    if chunk <= 0 or n_pending <= chunk:
        return max(0, min(chunk, n_pending))
    part = math.ceil(n_pending / math.ceil(n_pending / chunk))
    return min(chunk, part + -part % ROWS)
