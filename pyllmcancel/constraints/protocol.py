"""The protocol of constraints on answers, which decide which tokens may come next.

A constraint belongs to one choice. The engine asks it for a mask before every step in which the choice will be sampled,
and passes the sampled token to it; both happen in the engine thread, between steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Constraint(Protocol):
    """The state of one answer. Both methods raise ConstraintError, and nothing else, for a fault that fails the
    request.
    """

    def mask(self) -> NDArray[np.uint32] | None:
        """Return one bit per token, lowest bit first, shape (ceil(n_vocab / 32),); None while everything is allowed.

        A mask without any bit set fails the request.
        """

    def accept(self, token: int) -> bool:
        """Take the sampled token; return whether the answer is complete, so that nothing may follow."""


class ConstraintFactory(Protocol):
    """Compiled once for a request, whose choices each get their own constraint."""

    def new(self) -> Constraint: ...
