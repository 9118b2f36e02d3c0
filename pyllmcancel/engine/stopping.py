"""The reasons and the moment of an answer's end: stop tokens and strings, limits, and faults in its rows of logits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyllmcancel.engine.repetition import repeats_itself
from pyllmcancel.events import FinishReason, Limit
from pyllmcancel.step import LogitFault

if TYPE_CHECKING:
    from pyllmcancel.requests.request import Choice

FAULTS = {
    LogitFault.NOT_FINITE: "the model produced logits that are not finite",
    LogitFault.ALL_EQUAL: "the model produced logits that are all equal",
    LogitFault.GRAMMAR: "the grammar, or another constraint on the answer's tokens, allows no continuation",
    LogitFault.TOO_COMPLEX: "the grammar is too ambiguous: it has more ways to parse this answer than can be followed",
    LogitFault.NO_MEMORY: "there is not enough memory to sample a token",
}


def blamed(choice: Choice, fault: LogitFault) -> str | None:
    """Return the field of the request that caused the fault."""
    if fault not in (LogitFault.GRAMMAR, LogitFault.TOO_COMPLEX):
        return None
    params = choice.request.params
    return "grammar" if params.sampling.grammar or params.constraint is not None else "logit_bias"


def finish_reason(choice: Choice, limit: Limit | None, *, ended: bool) -> FinishReason | None:
    """Return why `choice` is complete with its last token; None if it goes on."""
    if ended or choice.detokenizer.stopped_by is not None:
        return FinishReason.STOP
    if limit is not None or len(choice.generated) >= choice.max_tokens:
        return FinishReason.LENGTH
    return None


def passed_limit(choice: Choice) -> Limit | None:
    """Return the limit, other than that of tokens, that `choice` has reached."""
    if choice.detokenizer.outdented:
        return Limit.INDENT
    if is_late(choice):
        return Limit.ANSWER_TIME
    return Limit.REPETITION if repeats_itself(choice) else None


def is_late(choice: Choice) -> bool:
    """Return whether an answer that contains a line feed has exceeded its time limit, counted from its first token."""
    most = choice.request.params.max_predict_seconds
    if most is None or not choice.has_line_feed:
        return False
    assert choice.first_token_at is not None
    return time.monotonic() - choice.first_token_at > most
