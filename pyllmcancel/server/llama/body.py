"""llama-server's own request bodies, as pydantic models: ``/completion``, ``/infill`` and the small ones.

Its clients send these fields, which must stay known:

- llama.vim, to ``/infill``: input_prefix, input_suffix, input_extra (of text, filename and a time), prompt, id_slot,
  n_predict, n_indent, stop, top_k, top_p, stream, samplers (with "infill"), cache_prompt, t_max_prompt_ms,
  t_max_predict_ms, response_fields; and, to warm the cache up, n_predict 0 with temperature 0, samplers [], both t_max
  at 1 and response_fields [""].
- llama.vscode, to ``/infill``: the same but for id_slot, stop, temperature and response_fields; lora, if configured.
- llama-server's web page speaks the OpenAI dialect, and asks for ``/props``, ``/slots`` and ``/models`` besides.

Any other field has no effect, or is refused by name: see `unknown_fields`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, StrictBool, StrictStr

from pyllmcancel.sampling import MAX_LOGPROBS
from pyllmcancel.server.limits import MAX_BIASED_TEXT, MAX_BIASES, MAX_EXTRAS, MAX_PROMPTS
from pyllmcancel.server.wire.fields import Name, RequestBody, Sent, TokenId, optional
from pyllmcancel.server.wire.generation import LlamaFields
from pyllmcancel.server.wire.sampling import MAX_INT, SamplerFields

# Tokens and texts, in one prompt; a text is tokenized by itself.
Mixed = Annotated[list[TokenId | StrictStr], Field(fail_fast=True)]


class PromptObject(RequestBody):
    prompt_string: StrictStr
    multimodal_data: list[str] = Field(
        default=[], description="Pictures and sounds in base64, each for a `media_marker` of `/props` in the text."
    )


Prompt = StrictStr | Mixed | PromptObject
# Strict, so that true is not a number.
Biased = TokenId | Annotated[StrictStr, Field(max_length=MAX_BIASED_TEXT)]
Bias = Annotated[float, Field(strict=True, ge=-1e6, le=1e6)] | Literal[False]
LogitBias = (
    Annotated[list[tuple[Biased, Bias]], Field(max_length=MAX_BIASES, fail_fast=True)]
    | Annotated[dict[Annotated[str, Field(max_length=MAX_BIASED_TEXT)], Bias], Field(max_length=MAX_BIASES)]
)


class AnsweringBody(LlamaFields, SamplerFields):
    """Fields for the choice of tokens, for generation, and for what the answer reports. The server has defaults for
    those that are not set.
    """

    temperature: float | None = optional("0 or less takes the likeliest token.", -1000, 100)
    presence_penalty: float | None = Field(None, ge=-100, le=100)
    frequency_penalty: float | None = Field(None, ge=-100, le=100)
    dry_base: float | None = optional("Below 1 the server's default is used.", 0, 100)
    dry_sequence_breakers: list[str] | None = Field(None, min_length=1, max_length=64)
    logit_bias: LogitBias | None = optional(
        "Pairs of a token or a text, and a bias; or an object of these. A bias of false bans the token."
    )
    n_probs: int | None = optional(
        "Number of the likeliest tokens to report in each place.",
        0,
        MAX_LOGPROBS,
        validation_alias=AliasChoices("n_probs", "logprobs"),
    )
    grammar: str | None = optional("GBNF whose root rule is `root`.", examples=['root ::= "yes" | "no"'])
    json_schema: dict[str, Any] | None = optional("The answer is JSON that obeys this schema.")
    n_predict: int = optional(
        "Limit of the answer's tokens; -1: until the model ends or the context is full; 0: only compute the prompt.",
        -1,
        MAX_INT,
        validation_alias=AliasChoices("n_predict", "max_completion_tokens", "max_tokens"),
        default=-1,
    )
    n_cmpl: int = optional(
        "Number of answers to each prompt.", 1, 128, validation_alias=AliasChoices("n_cmpl", "n"), default=1
    )
    token_healing: bool | None = optional(
        "Take the last word of the prompt back and have the answer begin with it; null: as `--token-healing` says."
    )

    @property
    def most_tokens(self) -> int | None:
        return self.n_predict if self.n_predict >= 0 else None


class LlamaCompletionBody(AnsweringBody):
    """The body of ``POST /completion``."""

    request_class = "completion"

    prompt: Prompt | Annotated[list[Prompt], Field(max_length=MAX_PROMPTS, fail_fast=True)] = Field(
        description="Text, tokens, both mixed, or `prompt_string`; or a list of these, with an answer for each.",
        examples=["def hello_world():"],
    )

    def prompts(self) -> list[Prompt]:
        """Return the prompts. A list is one prompt if it contains a token, and many prompts if it contains none."""
        match self.prompt:
            case list() as parts if not any(isinstance(part, int) for part in parts):
                # Without tokens every part is a prompt.
                return list(parts)
            case one:
                return [one]  # type: ignore[list-item]  # a list with a token is Mixed


class Extra(Sent):
    """A snippet. llama.vim adds the time when it was taken; other clients' fields do not belong into a prompt,
    either.
    """

    model_config = ConfigDict(extra="ignore")

    text: StrictStr
    filename: StrictStr = "tmp"


class InfillBody(AnsweringBody):
    """The body of ``POST /infill``."""

    request_class = "infill"

    input_prefix: StrictStr | Mixed = Field(description="Text before the gap.", examples=["def add(a, b):\n"])
    input_suffix: StrictStr | Mixed = Field(description="Text after the gap.", examples=["\n\nprint(add(1, 2))\n"])
    input_extra: list[Extra] = Field(
        default=[], max_length=MAX_EXTRAS, fail_fast=True, description="Snippets of other files, the best ones last."
    )
    prompt: StrictStr = Field("", description="More text before the gap: the beginning of its line.")


class TokenizeBody(RequestBody):
    """The body of ``POST /tokenize``."""

    model: Name = ""
    content: StrictStr | Mixed = Field("", examples=["def hello_world():"])
    add_special: StrictBool = Field(False, description="Begin with the token that begins texts, if the model has one.")
    parse_special: StrictBool = Field(True, description="Recognise special tokens in the text.")
    with_pieces: StrictBool = Field(False, description="Add the text of each token.")


class DetokenizeBody(RequestBody):
    """The body of ``POST /detokenize``."""

    model: Name = ""
    tokens: list[TokenId] = Field(default=[], fail_fast=True, examples=[[100, 200]])


class SlotFileBody(RequestBody):
    """The body of ``POST /slots/{id}``; not needed to erase."""

    model: Name = ""
    filename: StrictStr = Field(description="A name in the folder of `--slot-save-path`.", examples=["slot.bin"])
