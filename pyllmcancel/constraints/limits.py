"""Constraints that are limits on tokens: the tokens that an answer may have at all, and when it may end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pyllmcancel.constraints.protocol import Constraint, ConstraintFactory


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Makes the constraints of a request's choices, for a vocabulary of `n_vocab` tokens."""

    n_vocab: int
    allowed: frozenset[int] | None = None  # the only tokens of an answer, ending ones included; None: all
    ending: frozenset[int] = frozenset()  # forbidden among the first `at_least` tokens
    at_least: int = 0
    form: ConstraintFactory | None = None  # a further constraint; if nothing is left, an answer that must end ends

    def new(self) -> LimitedConstraint:
        always = None if self.allowed is None else bits(self.n_vocab, self.allowed)
        first = None
        if self.at_least > 0:
            first = ~bits(self.n_vocab, self.ending)
            if always is not None:
                first = first & always if (first & always).any() else always
        return LimitedConstraint(always, first, self.at_least, None if self.form is None else self.form.new())


class LimitedConstraint:
    """The state of one answer."""

    def __init__(
        self, always: NDArray[np.uint32] | None, first: NDArray[np.uint32] | None, n_first: int, form: Constraint | None
    ) -> None:
        self._always = always
        self._first = first
        self._n_first = n_first
        self._form = form

    def mask(self) -> NDArray[np.uint32] | None:
        limits = self._first if self._n_first > 0 else self._always
        formed = None if self._form is None else self._form.mask()
        if limits is None or formed is None:
            return formed if limits is None else limits
        both = limits & formed
        return both if self._n_first <= 0 or both.any() else formed

    def accept(self, token: int) -> bool:
        self._n_first -= 1
        return self._form is not None and self._form.accept(token)

    def fork(self) -> LimitedConstraint:
        form = None if self._form is None else self._form.fork()
        return LimitedConstraint(self._always, self._first, self._n_first, form)


def bits(n_vocab: int, tokens: Iterable[int]) -> NDArray[np.uint32]:
    """Return one bit per token, lowest bit first; tokens outside the vocabulary are ignored."""
    found = np.zeros((n_vocab + 31) // 32, dtype=np.uint32)
    for token in tokens:
        if 0 <= token < n_vocab:
            found[token // 32] |= np.uint32(1 << token % 32)
    return found
