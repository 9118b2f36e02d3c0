"""The share of drafted tokens that an owner's answers have accepted, by source: what the next answer begins with.

It is an owner's own. Otherwise the length of a draft would tell a little about the answers of others.

Used by the engine thread only.
"""

from __future__ import annotations

from pyllmcancel.drafting.length import PRIOR_WEIGHT, Acceptance
from pyllmcancel.drafting.sources import HEADS, MODEL, NGRAM, PAST, PREDICTION

PRIORS = {PAST: 0.8, PREDICTION: 0.8, NGRAM: 0.6, MODEL: 0.7, HEADS: 0.7}
LONG_PRIOR = 0.96  # of matches of many tokens, whatever the source is
LONG_WEIGHT = 25.0  # drafted tokens
MAX_OWNERS = 256
# Answers of an owner after which a draft model, or heads, are tried as if nothing were known of them. Where they were
# mostly wrong, their context does not even follow the answers, and they would never be asked again.
RETRIAL = 64


class Experience:
    """The acceptances of one owner's drafts."""

    def __init__(self) -> None:
        self._acceptances: dict[tuple[str, bool], Acceptance] = {}
        self._n_answers = 0

    def begin_answer(self) -> None:
        """Note that a further answer begins."""
        self._n_answers += 1
        if self._n_answers % RETRIAL == 0:
            for source in (MODEL, HEADS):
                self._acceptances.pop((source, False), None)

    def of(self, source: str, *, long: bool = False) -> Acceptance:
        """Return what is known of drafts from a source, and from matches that are `long`, to be learnt from."""
        key = source, long
        if key not in self._acceptances:
            self._acceptances[key] = Acceptance(LONG_PRIOR if long else PRIORS[source], weight_of(long=long))
        return self._acceptances[key]


class Experiences:
    """The experience of each owner; of those that were not asked for, the oldest are forgotten."""

    def __init__(self) -> None:
        self._owners: dict[str, Experience] = {}

    def of(self, owner: str) -> Experience:
        found = self._owners.pop(owner, None) or Experience()
        self._owners[owner] = found  # the newest last
        if len(self._owners) > MAX_OWNERS:
            del self._owners[next(iter(self._owners))]
        return found


def weight_of(*, long: bool) -> float:
    """Return the number of drafted tokens that an answer's first estimate counts as."""
    return LONG_WEIGHT if long else PRIOR_WEIGHT
