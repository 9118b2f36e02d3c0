"""The protocol of constraints on answers, which decide which tokens may come next.

A constraint belongs to one choice. The engine asks it for a mask before every step in which the choice will be sampled,
and passes the sampled tokens to it; both happen in the engine thread, between steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from pyllmcancel.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from numpy.typing import NDArray


class Constraint(Protocol):
    """The state of one answer. A fault that fails the request raises ConstraintError, and nothing else."""

    def mask(self) -> NDArray[np.uint32] | None:
        """Return one bit per token, lowest bit first, shape (ceil(n_vocab / 32),); None while everything is allowed.

        A mask without any bit set fails the request.
        """

    def accept(self, token: int) -> bool:
        """Take the sampled token; return whether the answer is complete, so that nothing may follow."""

    def fork(self) -> Self:
        """Return a copy that goes on by itself, to ask what would be allowed after a draft."""


class ConstraintFactory(Protocol):
    """Compiled once for a request, whose choices each get their own constraint."""

    def new(self) -> Constraint: ...


def after(constraint: Constraint, tokens: Sequence[int]) -> Constraint:
    """Return the constraint's state once it has accepted `tokens`. The constraint itself does not change."""
    if not tokens:
        return constraint
    fork = constraint.fork()
    for token in tokens:
        fork.accept(token)
    return fork


def masks_along(constraint: Constraint, draft: Sequence[int]) -> list[NDArray[np.uint32] | None]:
    """Return the mask of the next token, and those after each drafted token, as far as the draft is allowed.

    A drafted token that completes the answer has no mask after it, since nothing may follow.
    """
    masks = [constraint.mask()]
    if not draft:
        return masks
    fork = constraint.fork()
    for token in draft:
        if not allows(masks[-1], token):
            break
        try:
            if fork.accept(token):
                break
            masks.append(fork.mask())
        except ConstraintError:  # if the answer comes to this, its own constraint says so
            break
    return masks


def allows(mask: NDArray[np.uint32] | None, token: int) -> bool:
    return mask is None or bool(mask[token // 32] >> np.uint32(token % 32) & np.uint32(1))
