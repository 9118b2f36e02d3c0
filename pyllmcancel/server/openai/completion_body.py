"""``POST /v1/completions``: its body, and the body's translation for the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from pyllmcancel.chat.infill import fim_prompt
from pyllmcancel.engine.choices import check_count, room_after
from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.answer_form import answer_constraint
from pyllmcancel.server.bodies import FieldNames
from pyllmcancel.server.generate import Plan
from pyllmcancel.server.limits import MAX_PROMPTS
from pyllmcancel.server.openai.logprobs import PromptText
from pyllmcancel.server.wire.fields import TokenId, optional
from pyllmcancel.server.wire.generation import MAX_CHOICES, MAX_LOGPROBS, OpenAIBody
from pyllmcancel.server.wire.sampling import MAX_INT, Switch, extra
from pyllmcancel.server.wire.tokens import check_tokens

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.pausing import Pause
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.wire.tokens import TextReader

Tokens = Annotated[list[TokenId], Field(fail_fast=True)]


class CompletionBody(OpenAIBody):
    """The body of ``POST /v1/completions``."""

    request_class = "completion"
    null_says = frozenset({"max_tokens"})  # as in vLLM, null means no limit, and absence means 16

    prompt: (
        str
        | Tokens
        | Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True)]
        | Annotated[list[Tokens], Field(max_length=MAX_PROMPTS, fail_fast=True)]
    ) = Field(
        examples=["def hello_world():"],
        description="Text, or tokens, or a list of either. Special tokens in a text are recognised.",
    )
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **OpenAIBody.refused_fields,
        "messages": (),
        "tool_choice": ("none", "auto"),
        "tools": (),
    }

    max_tokens: int | None = optional(
        "Limit of the answer's tokens. 0 only computes the prompt; null or -1 goes on until the context is full.",
        -1,
        MAX_INT,
        default=16,
    )
    max_completion_tokens: int | None = extra("As `max_tokens`, if that is not given.", -1, MAX_INT)
    suffix: str | None = optional(
        "Text after the answer, which fills the gap before it; for models that can.", examples=["\n    return a"]
    )
    best_of: int | None = optional(
        "Number of choices to generate; the answer has the `n` whose tokens were likeliest on average.", 1, MAX_CHOICES
    )
    echo: Switch = Field(False, description="Begin the text, and the logprobs, with those of the prompt.")
    logprobs: Annotated[int | None, BeforeValidator(lambda value: None if value is False else value)] = optional(
        "Report logprobs, and this number of the likeliest tokens in each place.", 0, MAX_LOGPROBS
    )
    add_special_tokens: bool | None = extra("vLLM's: begin with the token that begins texts (the default).")

    token_healing: bool | None = extra(
        "TabbyAPI's: take the last word of the prompt back and have the answer begin with it, so that the prompt"
        " may end anywhere in a word. null: as `--token-healing` says."
    )

    @property
    def n_generated(self) -> int:
        return self.best_of or self.n or 1

    @property
    def most_tokens(self) -> int | None:
        said = self.max_tokens if "max_tokens" in self.model_fields_set else None
        limits = (said, self.max_completion_tokens, self.n_predict, self.max_tokens)
        most = next((limit for limit in limits if limit is not None), -1)
        return None if most < 0 else most

    @property
    def most_logprobs(self) -> int | None:
        return self.logprobs if self.logprobs is not None else self.n_probs or None

    def check(self, engine: Engine) -> None:
        super().check(engine)
        n = self.n or 1
        if self.n_generated < n:
            message = f"best_of is {self.best_of}, and cannot be less than n, which is {n}"
            raise InvalidRequestError(message, "best_of")
        if self.stream and self.n_generated > n:
            raise InvalidRequestError(
                "the best choices are known at the end only: best_of must equal n in a stream", "best_of"
            )
        if self.truncate_prompt_tokens and (self.suffix or self.echo):
            raise InvalidRequestError("a prompt with a suffix or an echo cannot be truncated", "truncate_prompt_tokens")
        if self.suffix and self.echo:
            raise InvalidRequestError(
                "echo cannot be combined with a suffix: the answer does not continue the prompt", "echo"
            )


@dataclass(frozen=True, slots=True)
class CompletionPlan(Plan):
    """The plan of a completion, whose answers may begin with `echoes` of its prompts."""

    echoes: Sequence[PromptText]


def read_completion(incoming: Incoming[CompletionBody], pause: Pause) -> CompletionPlan:
    """Prepare prompts from their texts to the parameters of their answers. Special tokens in a prompt are recognised,
    as editors expect.
    """
    state, body, reader = incoming.state, incoming.body, incoming.state.texts
    if not body.prompt and not isinstance(body.prompt, str):
        raise InvalidRequestError("the prompt is empty", "prompt")
    is_one = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
    given: Any = [body.prompt] if is_one else body.prompt
    check_count(len(given), body.n_generated)
    if body.suffix:
        prompts = [_around_gap(reader, prompt, body.suffix, pause) for prompt in given]
    else:
        first, last = body.add_special_tokens is not False, body.truncate_prompt_tokens
        tokens_of = partial(reader.tokens, add_special=first, parse_special=True, last=last)
        prompts = [tokens_of(prompt, "prompt", pause) for prompt in given]
    for tokens in prompts:
        check_tokens(tokens, reader.model.n_vocab, "prompt")
        if tokens:
            room_after(tokens, reader.n_ctx)  # checked before the texts of tokens without room are looked up
    echoes = []
    for prompt, tokens in zip(given, prompts, strict=True) if body.echo else ():
        pause()
        echoes.append(PromptText(reader.model, prompt, tokens))
    prediction = reader.predicted(body.predicted, pause)
    form = body.form
    constraint, unenforced = answer_constraint(state, form, pause)
    more = {"prompt_logprobs": body.echo and body.most_logprobs is not None, "token_healing": body.token_healing}
    params = body.generation_params(state, constraint, prediction, **more)
    names = FieldNames({} if form is None else {"grammar": form.param})
    return CompletionPlan(incoming, prompts, params, names, unenforced, echoes)


def _around_gap(reader: TextReader, prompt: str | list[int], suffix: str, pause: Pause) -> Sequence[int]:
    if not isinstance(prompt, str):
        raise InvalidRequestError("a suffix needs a prompt of text", "suffix")
    reader.check_length(len(prompt) + len(suffix), "prompt")
    pause()
    return fim_prompt(reader.model, prompt, suffix)
