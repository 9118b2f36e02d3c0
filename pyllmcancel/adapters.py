"""LoRA adapters: what is known of one, and which of them compute the tokens of a sequence."""

from __future__ import annotations

import sys
from typing import NamedTuple

# The numbers of adapters, which ascend, and their scales, none of which is 0.
Scales = tuple[tuple[int, float], ...]


class Adapter(NamedTuple):
    """A LoRA adapter, as its file describes it.

    One with `invocation_tokens` is an activated LoRA (aLoRA): it computes a prompt from these tokens on.
    """

    task_name: str = ""
    prompt_prefix: str = ""
    invocation_tokens: tuple[int, ...] = ()


class Adapted(NamedTuple):
    """The adapters that compute a sequence's tokens: those with the index `begin` and later ones; none computes the
    tokens before.
    """

    scales: Scales = ()  # the adapters; empty if there are none at all
    begin: int = sys.maxsize

    def at(self, index: int) -> Scales:
        """Return the adapters that compute the token with this index."""
        return self.scales if index >= self.begin else ()

    def n_alike(self, other: Adapted) -> int:
        """Return the limit of leading tokens whose cells are the same in both sequences, if the tokens are."""
        return sys.maxsize if self == other else min(self.begin, other.begin)

    def n_until_change(self, index: int) -> int:
        """Return the number of tokens, from this index on, that the same adapters compute."""
        return sys.maxsize if index >= self.begin else self.begin - index


UNADAPTED = Adapted()
