"""``POST /v1/completions``: its body, and what that asks of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pyllmcancel.choices import check_count, room_after
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.infill import fim_prompt
from pyllmcancel.request import GenerationParams
from pyllmcancel.server.limits import MAX_PROMPTS
from pyllmcancel.server.openai.logprobs import PromptText
from pyllmcancel.server.sampling_fields import MOST
from pyllmcancel.server.tokens import check_tokens
from pyllmcancel.server.wire import TokenId
from pyllmcancel.server.wire_generation import MAX_CHOICES, MOST_LOGPROBS, GenerationBody, Switch

if TYPE_CHECKING:
    from pyllmcancel.constraints.protocol import ConstraintFactory
    from pyllmcancel.pausing import Pause
    from pyllmcancel.sampling import SamplingParams
    from pyllmcancel.server.tokens import TextReader

Tokens = Annotated[list[TokenId], Field(fail_fast=True)]


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    request_class = "completion"

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[Tokens], Field(max_length=MAX_PROMPTS, fail_fast=True)]
    ) = Field(
        examples=["def hello_world():"],
        description="Text, or tokens, or a list of either. Special tokens may be spelled in a text.",
    )
    max_tokens: int | None = Field(
        16, ge=0, le=MOST, description="0 only computes the prompt; null goes on until the context is full."
    )
    suffix: str | None = Field(
        None,
        description="What stands after the answer: fills the gap, for models that can.",
        examples=["\n    return a"],
    )
    best_of: int | None = Field(
        None,
        ge=1,
        le=MAX_CHOICES,
        description="Generate so many, answer the `n` whose tokens were likeliest on average.",
    )
    echo: Switch = Field(False, description="Begin the text, and the logprobs, with the prompt's.")
    logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="Logprobs of the tokens, and so many of the likeliest in each place."
    )

    @property
    def only_warms(self) -> bool:
        return self.most_tokens == 0

    @property
    def n_generated(self) -> int:
        """Choices that are generated for each prompt."""
        return self.best_of or self.n or 1

    @property
    def most_tokens(self) -> int | None:
        """Of an answer; None: until the context is full."""
        if self.n_predict is None or "max_tokens" in self.model_fields_set:
            return self.max_tokens
        return None if self.n_predict < 0 else self.n_predict

    @property
    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if not self.prompt:
            raise InvalidRequestError("the prompt is empty", "prompt")
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    def check(self) -> None:
        super().check()
        n = self.n or 1
        if self.n_generated < n:
            message = f"best_of is {self.best_of}, and cannot be less than n, which is {n}"
            raise InvalidRequestError(message, "best_of")
        if self.stream and self.n_generated > n:
            raise InvalidRequestError("the best can be told at the end only: best_of must be n in a stream", "best_of")
        if self.suffix and self.echo:
            raise InvalidRequestError("with a suffix the prompt is not what the answer goes on from", "echo")

    def generation_params(self, defaults: SamplingParams, constraint: ConstraintFactory | None) -> GenerationParams:
        """What to generate; `defaults` for what the client leaves open."""
        # To compare answers, their logprobs are wanted, whether or not the client gets to see them.
        compared = self.n_generated > (self.n or 1)
        n_logprobs = 0 if compared and self.logprobs is None else self.logprobs
        return GenerationParams(
            sampling=self.sampling(defaults, n_logprobs),
            n=self.n_generated,
            max_tokens=self.most_tokens,
            prompt_logprobs=self.echo and self.logprobs is not None,
            constraint=constraint,
            **self.limits(),
        )


def read_prompts(
    reader: TextReader, body: CompletionBody, pause: Pause
) -> tuple[list[Sequence[int]], list[PromptText]]:
    """The prompts' tokens, and what is echoed of them. Editors spell special tokens in prompts, and mean them."""
    given = body.prompts
    check_count(len(given), body.n_generated)
    if body.suffix:
        prompts = [_around_gap(reader, prompt, body.suffix, pause) for prompt in given]
    else:
        prompts = [reader.tokens(prompt, "prompt", pause, parse_special=True) for prompt in given]
    for tokens in prompts:
        check_tokens(tokens, reader.model.n_vocab, "prompt")
        if tokens:
            room_after(tokens, reader.n_ctx)  # before the texts of tokens without room are looked up
    echoes = []
    for prompt, tokens in zip(given, prompts, strict=True) if body.echo else ():
        pause()
        echoes.append(PromptText(reader.model, prompt, tokens))
    return prompts, echoes


def _around_gap(reader: TextReader, prompt: str | list[int], suffix: str, pause: Pause) -> Sequence[int]:
    if not isinstance(prompt, str):
        raise InvalidRequestError("a suffix needs a prompt that is text", "suffix")
    reader.check_length(len(prompt) + len(suffix), "prompt")
    pause()
    return fim_prompt(reader.model, prompt, suffix)
