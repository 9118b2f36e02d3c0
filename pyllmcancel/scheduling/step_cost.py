"""The cost of steps, learnt from measured ones, and the size of a prefill chunk that follows from it.

A step of n tokens takes about ``fixed + per_token * n`` seconds: weights are read once, arithmetic grows with n.

An aborted step is lost as a whole. If each cancelled prompt is followed by a similar one sooner than a step takes, no
step would ever be finished. Therefore an abort halves the chunks, and they are doubled when two in a row were computed.
"""

from __future__ import annotations

import math

DECAY = 0.9
# The weight of a step that took longer than expected, unless several in a row did. Other programs add to a step's time
# now and then, and chunks that shrink each time would make prompts slower still.
SLOW_WEIGHT = 0.25
SLOW_IN_A_ROW = 3
EFFICIENT_OVERHEAD = 0.05  # alone: the share of a chunk's cost that may be fixed cost
TILE = 64  # tokens: alone, chunks are whole multiples, so that steps of few sizes are measured
ROWS = 8  # rows that kernels of matrix products take at once
SMALLEST_CHUNK = 8
SMALLEST_AFTER_ABORTS = TILE // 4  # smaller steps are mostly fixed cost
# computed chunks before chunks grow: a chunk that was aborted for its size would be tried again at once
FINISHED_IN_A_ROW = 2
CHEAPEST = 1e-9  # seconds a token; chunks are sized by dividing by it


class ChunkLimit:
    """The limit of a chunk's tokens for which the chunk is likely to be finished: `most`, infinite while no steps are
    aborted.
    """

    def __init__(self) -> None:
        self.most = math.inf
        self._n_finished = 0  # the number of computed chunks of the full size

    def aborted(self, n_tokens: int) -> None:
        if n_tokens > SMALLEST_AFTER_ABORTS:
            self.most, self._n_finished = halved(n_tokens), 0

    def computed(self, n_tokens: int) -> None:
        if n_tokens >= self.most:
            self._n_finished += 1
            if self._n_finished == FINISHED_IN_A_ROW:
                self.most, self._n_finished = 2 * self.most, 0


class StepCostModel:
    """An affine fit of step time over tokens, in which older steps count less and less; and the limits of chunks, of
    which idle requests have their own, since their steps are aborted for others.
    """

    def __init__(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0
        self._n_slow = 0
        self._limits = ChunkLimit(), ChunkLimit()

    def most(self, *, idle: bool = False) -> float:
        """Return the limit of a chunk's tokens."""
        return self._limits[idle].most

    def aborted(self, n_tokens: int, *, idle: bool = False) -> None:
        """Learn from the abort of a step of `n_tokens` tokens."""
        self._limits[idle].aborted(n_tokens)

    def observe(self, n_tokens: int, seconds: float, *, idle: bool = False) -> None:
        """Learn from a step that was computed."""
        self._limits[idle].computed(n_tokens)
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
        """Return (fixed, per_token) in seconds; (0, 1) before anything was observed."""
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
        """Return the seconds that a step of `n_tokens` tokens takes."""
        fixed, per_token = self.fit()
        return fixed + per_token * n_tokens

    @property
    def known(self) -> bool:
        return self._weight > 0.0


def halved(n_tokens: int) -> int:
    """Return half of a chunk, in whole tiles, or a half or a quarter of one: sizes in between cost as much as a
    tile.
    """
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
    idle: bool = False,
) -> int:
    """Return the limit of tokens of the next step that computes prompts. If `mixed`, decodes in the same step count,
    too.

    Alone, the limit is the smallest number of whole tiles that is efficient, within `max_step` seconds, but one at
    least. While `n_decodes` sequences decode, the time between two of their tokens is this step and a decode step. The
    limit keeps that time within `itl_target`, but is never so small that prefill loses half its speed.

    If not `tiled` (any device but a CPU), alone, the limit is what `max_step` allows. Small steps would not show what
    large ones cost, and would stay small; a cancel does not wait for the end of a large one.
    """
    if not cost.known:
        return int(min(n_batch, cost.most(idle=idle), TILE if tiled else n_batch))
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
    return max(1, int(min(n_batch, n_tokens, cost.most(idle=idle))))


def with_tail(chunk: int, n_pending: int, *, n_others: int, n_batch: int) -> int:
    """Return how many of a prompt's `n_pending` tokens to compute, within `chunk`, in a step with `n_others` tokens.

    A rest shorter than a tile goes with the chunk before it, which saves a step.
    """
    in_tiles = chunk > 0 and n_others + chunk >= TILE
    if in_tiles and n_pending < chunk + TILE and n_others + n_pending <= n_batch:
        return n_pending
    return max(0, min(chunk, n_pending))


def even_part(chunk: int, n_pending: int) -> int:
    """Return how many of a prompt's `n_pending` tokens to compute beside decodes, within `chunk`: parts of similar
    sizes.

    No part is longer than a chunk, which `itl_target` allows, and the last part is not a step of a few tokens.
    """
    if chunk <= 0 or n_pending <= chunk:
        return max(0, min(chunk, n_pending))
    part = math.ceil(n_pending / math.ceil(n_pending / chunk))
    return min(chunk, part + -part % ROWS)
