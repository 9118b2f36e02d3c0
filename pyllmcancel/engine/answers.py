"""The growth of answers, and their end: a sampled token becomes text, and the next delta, and maybe the last one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyllmcancel.engine.repetition import repeats_itself
from pyllmcancel.events import Delta, FinishReason, Limit, RequestStatus, TokenLogprobs
from pyllmcancel.step import LogitFault

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.requests.observer import Observer
    from pyllmcancel.requests.request import Choice
    from pyllmcancel.step import SampledToken

FAULTS = {
    LogitFault.NOT_FINITE: "the model produced logits that are not finite",
    LogitFault.ALL_EQUAL: "the model produced logits that are all equal",
    LogitFault.GRAMMAR: "the grammar, or another constraint on the answer's tokens, allows no continuation",
    LogitFault.TOO_COMPLEX: "the grammar is too ambiguous: it has more ways to parse this answer than can be followed",
    LogitFault.NO_MEMORY: "there is not enough memory to sample a token",
}


def add_token(choice: Choice, sampled: SampledToken, model: Model, observer: Observer) -> Delta:
    """Add a token to a choice, and set the choice's `finish_reason` if it is complete with it; ConstraintError if the
    choice's constraint cannot go on.
    """
    prompt_logprobs, choice.prompt_logprobs = tuple(choice.prompt_logprobs), []
    if choice.max_tokens == 0:
        # Only the prompt was asked for, but computing it samples a token all the same.
        choice.finish_reason = FinishReason.LENGTH
        return Delta(choice.index, "", finish_reason=FinishReason.LENGTH, prompt_logprobs=prompt_logprobs)
    clock_token(choice, observer)
    choice.generated.append(sampled.token)
    return _delta(choice, sampled, model, prompt_logprobs)


def _delta(choice: Choice, sampled: SampledToken, model: Model, prompt_logprobs: tuple[TokenLogprobs, ...]) -> Delta:
    token, params = sampled.token, choice.request.params
    eog, stops = model.is_eog(token), token in params.stop_tokens
    hidden = eog or (stops and not params.stop_shown)
    text = "" if hidden else choice.detokenizer.feed(token)
    choice.has_line_feed = choice.has_line_feed or "\n" in text
    complete = not eog and choice.constraint is not None and choice.constraint.accept(token)
    limit = None if eog or stops or complete else passed_limit(choice)
    choice.finish_reason = finish_reason(choice, limit, ended=eog or stops or complete)
    stop_text = choice.detokenizer.stopped_by
    if choice.finish_reason is not None:
        text += choice.detokenizer.flush()
        text += stop_text or "" if params.stop_shown else ""
    tokens = () if hidden else (token,)
    logprobs: tuple[TokenLogprobs, ...] = ()
    if sampled.logprob is not None and sampled.top_logprobs is not None and not hidden:
        logprobs = (TokenLogprobs(token, sampled.logprob, sampled.top_logprobs),)
    limit = limit if choice.finish_reason is FinishReason.LENGTH else None
    return Delta(choice.index, text, tokens, logprobs, choice.finish_reason, stop_text, prompt_logprobs, limit=limit)


def clock_token(choice: Choice, observer: Observer) -> None:
    request, now = choice.request, time.monotonic()
    if request.first_token_at is None:
        request.first_token_at = now
        request.status = RequestStatus.DECODE
        observer.first_token(request, now - request.arrived_at)
    elif choice.last_token_at is not None and not choice.resumes:
        observer.next_token(request, now - choice.last_token_at)
    choice.first_token_at = choice.first_token_at or now
    choice.last_token_at = now
    choice.resumes = False


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
