"""The parts that a request's choices are made of: room for their answers, samplers, detokenizers, constraints.

Every error in a request is found here, before the request is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyllmcancel.constraints.healing import Healed, HealingConstraint, PieceIndex, give_back
from pyllmcancel.errors import ContextLengthError, InvalidRequestError, UsageError
from pyllmcancel.media.values import media_runs, text_tokens
from pyllmcancel.requests.detokenizer import Detokenizer
from pyllmcancel.requests.params import check_deadlines
from pyllmcancel.requests.request import Choice, Request

if TYPE_CHECKING:
    from pyllmcancel._native import Model, Sampler
    from pyllmcancel.requests.adapter_table import AdapterTable
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.sampling import SamplingParams

MAX_CHOICES = 128
MAX_TOKENS = 1 << 31  # of any vocabulary


class ChoiceMaker:
    """Makes choices for one model; may be used from any thread.

    `native` is the module that has the model's `Sampler`. `heals`: prompts are healed whose requests leave that open.
    """

    def __init__(self, model: Model, native: Any, adapters: AdapterTable, *, heals: bool = False) -> None:
        self._model = model
        self._adapters = adapters
        self._heals = heals
        self._native = native

    def choices(self, request: Request, prompts: Sequence[Sequence[int]], n_ctx: int) -> list[Choice]:
        """Return `n` choices for each prompt, prompt by prompt, each of `n_ctx` tokens at most, prompt included.

        InvalidRequestError if the request can never be served in this form; RequestCancelled if it is cancelled
        meanwhile.
        """
        params = request.params
        check_count(len(prompts), params.n)
        if params.max_tokens is not None and params.max_tokens < 0:
            raise InvalidRequestError("max_tokens must not be negative", "max_tokens")
        check_deadlines(params)
        if any(not isinstance(token, int) or not 0 <= token < MAX_TOKENS for token in params.stop_tokens):
            raise InvalidRequestError("stop_tokens must be token ids", "stop_tokens")
        n_vocab = self._model.n_vocab
        if any(not isinstance(token, int) or not 0 <= token < n_vocab for token in params.prediction):
            raise InvalidRequestError("prediction must be token ids of the vocabulary", "prediction")
        choices: list[Choice] = []
        for given in prompts:
            room = room_after(given, n_ctx)
            media = media_runs(given)
            if media and params.prompt_logprobs:
                raise InvalidRequestError("a prompt with pictures or sounds has no logprobs", "logprobs")
            prompt, given_back = self._healed(given, params)
            prompt = list(prompt) if media else prompt  # without its pictures, which end with the request
            adapted = self._adapters.adapted(request.adapters, prompt)
            for number in range(params.n):
                if request.cancellation.requested:  # each DRY sampler reads the whole vocabulary
                    raise request.cancel_error()
                max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
                sibling = choices[0].sampler if choices else None
                sampler = self._sampler(params.sampling, text_tokens(prompt) if media else prompt, number, sibling)
                detokenizer = Detokenizer(self._pieces(params), params.stop, params.min_indent, given_back)
                choice = Choice(request, len(choices), prompt, sampler, max_tokens, detokenizer, media, adapted)
                choice.given_back = given_back
                choice.constraint = params.constraint.new() if params.constraint is not None else None
                if given_back:
                    choice.constraint = HealingConstraint(self._piece_index, self._model.piece, given_back)
                choices.append(choice)
        return choices

    def _healed(self, prompt: Sequence[int], params: GenerationParams) -> Healed:
        wanted = self._heals if params.token_healing is None else params.token_healing
        against = "a form of the answer" if params.constraint is not None or params.sampling.grammar else None
        against = "the logprobs of the prompt" if params.prompt_logprobs else against
        if against is not None and params.token_healing:
            raise InvalidRequestError(f"token_healing cannot be combined with {against}", "token_healing")
        if not wanted or against is not None:
            return Healed(prompt, b"")
        banned = {token for token, bias in params.sampling.logit_bias if bias == -math.inf}
        return give_back(prompt, self._model, banned)

    @cached_property
    def _piece_index(self) -> PieceIndex:
        """The vocabulary by its pieces. Made when it is first needed: 260,000 tokens take a third of a second."""
        return PieceIndex(self._model)

    def _pieces(self, params: GenerationParams) -> Callable[[int], bytes]:
        """Return the function from a token to its bytes in an answer, in which some control tokens may be visible."""
        piece = self._model.piece
        if not params.visible_tokens and not params.all_visible:
            return piece
        return lambda token: piece(token, special=params.shows(token))

    def _sampler(
        self, sampling: SamplingParams, prompt: Sequence[int], number: int, sibling: Sampler | None
    ) -> Sampler:
        """Make the sampler of a choice. Choices of one prompt differ by their seeds, each derived from the
        request's.
        """
        try:
            sampler: Sampler = self._native.Sampler(self._model, sampling.of_choice(number), sibling)
        except UsageError as error:
            raise InvalidRequestError(str(error), "grammar" if sampling.grammar else "logit_bias") from error
        try:
            sampler.accept_prompt(prompt)
        except (UsageError, OverflowError) as error:
            raise InvalidRequestError(str(error), "prompt") from error
        return sampler


def check_count(n_prompts: int, n: int) -> None:
    """Raise InvalidRequestError if a request cannot have `n` choices for each of `n_prompts` prompts."""
    if n < 1 or n_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(f"a request may have 1 to {MAX_CHOICES} choices, not {n_prompts * n}", "n")


def room_after(prompt: Sequence[int], n_ctx: int) -> int:
    """Return the limit of tokens of an answer to `prompt`; InvalidRequestError if the limit is below one."""
    if not prompt:
        raise InvalidRequestError("the prompt is empty", "prompt")
    room = n_ctx - len(prompt)
    if room < 1:
        raise ContextLengthError(len(prompt), n_ctx)
    return room
