"""The growth of answers: a sampled token becomes text, the next delta, and maybe the answer's end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyllmcancel.engine.stopping import finish_reason, passed_limit
from pyllmcancel.events import Delta, FinishReason, RequestStatus, TokenLogprobs

if TYPE_CHECKING:
    from pyllmcancel._native import Model
    from pyllmcancel.requests.observer import Observer
    from pyllmcancel.requests.request import Choice
    from pyllmcancel.step import SampledToken


class Answers:
    """Adds tokens to choices. Used by the engine thread only.

    Attributes
    ----------
    n_generated
        The number of tokens so far, of all requests. Written by the engine thread, read by any.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.n_generated = 0

    def add(self, choice: Choice, sampled: SampledToken, observer: Observer) -> Delta:
        """Add a token to a choice, and set the choice's `finish_reason` if it is complete with it.

        Raises
        ------
        ConstraintError
            The choice's constraint cannot go on.
        """
        prompt_logprobs, choice.prompt_logprobs = tuple(choice.prompt_logprobs), []
        if choice.max_tokens == 0:
            # Only the prompt was asked for, but computing it samples a token all the same.
            choice.finish_reason = FinishReason.LENGTH
            return Delta(choice.index, "", finish_reason=FinishReason.LENGTH, prompt_logprobs=prompt_logprobs)
        clock_token(choice, observer)
        choice.generated.append(sampled.token)
        self.n_generated += 1
        return self._delta(choice, sampled, prompt_logprobs)

    def _delta(self, choice: Choice, sampled: SampledToken, prompt_logprobs: tuple[TokenLogprobs, ...]) -> Delta:
        token, params = sampled.token, choice.request.params
        eog, stops = self._model.is_eog(token), token in params.stop_tokens
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
        return Delta(
            choice.index, text, tokens, logprobs, choice.finish_reason, stop_text, prompt_logprobs, limit=limit
        )


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
