"""The fields for the choice of tokens in OpenAI's dialect: OpenAI's, llama-server's, vLLM's and Ollama's."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema

from pyllmcancel.server.limits import MAX_BIASES
from pyllmcancel.server.wire.fields import RequestBody, Stop
from pyllmcancel.server.wire.sampling_fields import MAX_INT, SamplerFields

# Keys of a JSON object are texts.
BiasedToken = Annotated[int, Field(ge=0, lt=2**31)]
MAX_STOPS = 64
NOT_OPENAI = "Not in OpenAI's API."
NO_EFFECT = "Accepted, and without effect:"

# OpenAI's schema allows null for these, which means false.
Switch = Annotated[bool, WithJsonSchema({"anyOf": [{"type": "boolean"}, {"type": "null"}]})]
Stops = Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS, fail_fast=True)] | None


def extra(meaning: str) -> str:
    return f"{NOT_OPENAI} {meaning}"


def _as_object(biases: Any) -> Any:
    """Convert llama-server's list of pairs, in which false bans a token, to OpenAI's object."""
    if not isinstance(biases, list):
        return biases
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in biases):
        raise ValueError("must be an object, or a list of pairs of a token's number and a bias")
    return {str(token): -100 if bias is False else bias for token, bias in biases}


class SamplingFields(SamplerFields):
    """Fields for the choice of tokens. A field that is null or left out has the value the server was started with."""

    temperature: float | None = Field(None, ge=0, le=100, description="0 takes the likeliest token.")
    frequency_penalty: float | None = Field(
        None, ge=-2, le=2, description="Penalty for each time that a token has occurred."
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Penalty for tokens that have occurred.")
    logit_bias: Annotated[
        dict[BiasedToken, Annotated[float, Field(ge=-100, le=100)]] | None, BeforeValidator(_as_object)
    ] = Field(
        None,
        max_length=MAX_BIASES,
        description="Added to the logits of tokens, by id; -100 bans one.",
        examples=[{"12": -100}],
    )

    dry_sequence_breakers: Annotated[list[str], Field(max_length=64)] | None = Field(
        None, description=extra("Texts at which DRY's repeated sequences end.")
    )
    repetition_penalty: float | None = Field(
        None,
        gt=0,
        le=100,
        description=extra("vLLM's: `repeat_penalty` over prompt and answer, if that is not given."),
    )

    def given(self) -> dict[str, Any]:
        found = super().given()
        if self.repetition_penalty is not None and self.repeat_penalty is None:
            found["repeat_penalty"] = max(self.repetition_penalty, 0.01)
            found.setdefault("penalty_last_n", -1)
        # In OpenAI's API -100 bans a token.
        biases = (self.logit_bias or {}).items()
        found["logit_bias"] = tuple((token, float("-inf") if bias == -100 else bias) for token, bias in biases)
        return found


class OllamaOptions(SamplingFields, RequestBody):
    """Ollama's `options`: each one counts if the body has no field of the same meaning itself."""

    # Fields that have another name in the body.
    names: ClassVar[dict[str, str]] = {"num_predict": "n_predict"}

    num_predict: int | None = Field(None, ge=-2, le=MAX_INT, description="As `n_predict`; negative: no limit.")
    num_ctx: int | None = Field(
        None, ge=0, le=MAX_INT, description="Without effect; reported if the context is smaller."
    )
    num_keep: int | None = Field(None, ge=-1, le=MAX_INT, description="Without effect: no context is ever shifted.")
    stop: Stops = None

    def for_body(self) -> dict[str, Any]:
        """Return fields of a body, as far as the client set them."""
        values = {
            self.names.get(name, name): getattr(self, name)
            for name in OllamaOptions.model_fields
            if name not in ("num_ctx", "num_keep")
        }
        if self.num_predict is not None:
            values["n_predict"] = max(self.num_predict, -1)
        return {name: value for name, value in values.items() if value is not None}
