"""What a step costs, learnt from the steps themselves, and how large a prefill chunk should be.

A step of n tokens takes about ``fixed + per_token * n`` seconds: weights are read once, arithmetic grows with n.
"""

from __future__ import annotations

DECAY = 0.9
EFFICIENT_OVERHEAD = 0.05  # alone: chunks whose fixed cost is at most this share
GRANULE = 16  # chunks are multiples of this, which the matrix kernels like
SMALLEST_CHUNK = 8
FIRST_CHUNK = 64
CHEAPEST = 1e-9  # seconds a token; chunks are sized by dividing by it


class StepCostModel:
    """An affine fit of step time over tokens, in which older steps count less and less."""

    def __init__(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0

    def observe(self, n_tokens: int, seconds: float) -> None:
        self._weight = self._weight * DECAY + 1.0
        self._n = self._n * DECAY + n_tokens
        self._nn = self._nn * DECAY + n_tokens * n_tokens
        self._t = self._t * DECAY + seconds
        self._nt = self._nt * DECAY + n_tokens * seconds

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

    @property
    def known(self) -> bool:
        return self._weight > 0.0


def chunk_size(cost: StepCostModel, *, n_decodes: int, n_batch: int, itl_target: float, max_step: float) -> int:
    """Most prompt tokens to put into the next step.

    Alone: the smallest chunk that is efficient, within `max_step` seconds. Beside `n_decodes` decoding sequences: as
    many as keep the step within `itl_target`, but never so few that prefill loses half its speed.
    """
    room = n_batch - n_decodes
    if not cost.known:
        return min(room, FIRST_CHUNK)
    fixed, per_token = cost.fit()
    if n_decodes:
        within = (itl_target - fixed) / per_token - n_decodes
        at_least = max(fixed / per_token, SMALLEST_CHUNK)
        return max(1, min(room, int(max(within, at_least))))
    efficient = fixed / per_token * (1.0 / EFFICIENT_OVERHEAD - 1.0)
    within = (max_step - fixed) / per_token
    wanted = min(max(efficient, FIRST_CHUNK), within)
    granules = max(1, round(wanted / GRANULE))
    return min(room, granules * GRANULE)
