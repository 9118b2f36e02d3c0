"""Answers that repeat themselves: their last tokens are one period, again and again.

Only a repetition that is the model's own ends an answer. One that the answer's form demands does not.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from pyllmcancel.errors import ConstraintError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel.constraints.protocol import Constraint
    from pyllmcancel.requests.request import Choice

MAX_PERIOD = 512  # tokens
MIN_PERIODS = 4
EVERY = 32  # tokens between two looks at an answer, because each look takes 20 to 60 microseconds
EVERY_FORMED = 256  # and in a formed answer, because asking the form takes milliseconds
MAX_ASKED = 4_096  # tokens of a repetition that a form is asked about


def repeats_itself(choice: Choice) -> bool:
    """Return whether `choice` has come to its request's limit of repetition.

    An answer whose end is forbidden, or which a grammar of the sampler forms from its first token, has no such limit.
    """
    params, sampling = choice.request.params, choice.request.params.sampling
    if not params.repetition_limit or len(choice.generated) % (EVERY if choice.constraint is None else EVERY_FORMED):
        return False
    if sampling.ignore_eos or (sampling.grammar and not sampling.grammar_triggers):
        return False
    period = period_of(choice.generated, params.repetition_limit)
    return period > 0 and not (choice.constraint and demands(choice.constraint, choice.generated[-period:]))


def period_of(tokens: Sequence[int], least: int) -> int:
    """Return the length of the period that the last tokens repeat: at least `least` tokens, and `MIN_PERIODS` periods.

    Returns 0 if they repeat none. In a few places of a period that has repetitions of its own, it is not found; a later
    look finds it.
    """
    needed = least - least // MIN_PERIODS  # this number of the last tokens also stands one period before
    last = as_text(tokens[-needed - MAX_PERIOD :])[::-1]
    period = last.find(last[:needed], 1)
    n_same = max(least, MIN_PERIODS * period)
    if period < 0 or len(tokens) < n_same:
        return 0
    same = as_text(tokens[-n_same:])
    return period if same[period:] == same[:-period] else 0


def as_text(tokens: Sequence[int]) -> str:
    """Return a character for each token: texts are searched and compared fast."""
    return array("I", tokens).tobytes().decode("utf-32-le", "surrogatepass")


def demands(constraint: Constraint, period: Sequence[int]) -> bool:
    """Return whether the form is behind a repetition: if that went on, the form would end it, or allow other tokens."""
    later = constraint.fork()
    try:
        if any(map(later.accept, [*period] * (MAX_ASKED // len(period)))):
            return True
        masks = constraint.mask(), later.mask()
    except ConstraintError:
        return True
    return len({b"" if mask is None else mask.tobytes() for mask in masks}) > 1
