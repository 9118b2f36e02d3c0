"""Fields that both dialects have: llama-server's limits and reports, LoRA adapters, and drafts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from pyllmcancel.server.limits import MAX_FIELD_PATH
from pyllmcancel.server.wire.fields import MAX_MS, GeneratingBody, RequestBody, Sent, between, seconds
from pyllmcancel.server.wire.sampling import MAX_INT, Stops

if TYPE_CHECKING:
    from pyllmcancel.server.config import ServerConfig

MAX_PREDICTED_PARTS = 1_024

DraftLimit = Annotated[
    int | None,
    Field(
        ge=0,
        le=MAX_INT,
        validation_alias="speculative.n_max",
        serialization_alias="speculative.n_max",
        description=(
            "llama-server's: limit of drafted tokens in a step, if it is below `--draft-max`; 0: nothing is drafted,"
            " and nothing is taken from an earlier answer."
        ),
    ),
]


class PredictedText(RequestBody):
    type: Literal["text"] = "text"
    text: str


class Prediction(RequestBody):
    type: Literal["content"]
    content: str | Annotated[list[PredictedText], Field(min_length=1, max_length=MAX_PREDICTED_PARTS, fail_fast=True)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class DraftFields(Sent):
    prediction: Prediction | None = Field(
        None,
        description="Text that much of the answer is expected to consist of: the answer is the same, and comes faster.",
        examples=[{"type": "content", "content": "def add(a, b):\n    return a + b\n"}],
    )


MAX_ADAPTERS = 1_024


class LoraScale(RequestBody):
    id: int = Field(ge=0, le=MAX_INT, description="Number of an adapter, as `/lora-adapters` lists them.")
    scale: float = Field(0.0, allow_inf_nan=False)


LoraScales = Annotated[list[LoraScale], Field(max_length=MAX_ADAPTERS, fail_fast=True)]


class LoraFields(Sent):
    lora: LoraScales | None = Field(
        None,
        description=(
            "llama-server's: the LoRA adapters that compute this request, and their scales; others have 0. Without it,"
            " the scales are those of `/lora-adapters`."
        ),
        examples=[[{"id": 0, "scale": 1.0}]],
    )

    @property
    def adapters(self) -> tuple[tuple[int, float], ...] | None:
        """The adapters that the request asks for, and their scales; None if it leaves them to the server."""
        return pairs(self.lora) if self.lora else None  # in llama-server, an empty list asks for nothing


def described_as_list(schema: dict[str, Any]) -> None:
    scales = schema["properties"]["scales"]
    schema.clear()
    schema.update(scales)


class LoraScalesBody(RequestBody):
    """The body of ``POST /lora-adapters``: a list, unlike all others."""

    model_config = ConfigDict(extra="allow", json_schema_extra=described_as_list)

    scales: LoraScales

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, sent: Any) -> Any:
        if not isinstance(sent, list):
            raise ValueError("the body must be a list of objects with id and scale")
        return {"scales": sent}


def pairs(scales: list[LoraScale]) -> tuple[tuple[int, float], ...]:
    return tuple((entry.id, entry.scale) for entry in scales)


class LlamaFields(LoraFields, GeneratingBody):
    stop: Stops = None
    n_indent: int | None = between(
        0, 1000, "llama-server's: a line with fewer blanks at its beginning ends the answer."
    )
    t_max_prompt_ms: int | None = between(
        -1, MAX_MS, "llama-server's: time limit for the prompt, after which the answer is empty."
    )
    t_max_predict_ms: int | None = between(
        -1, MAX_MS, "llama-server's: time limit from the first token, which applies once the answer has a line feed."
    )
    cache_prompt: bool | None = Field(
        None, description="llama-server's: start from the longest cached prefix of the prompt (the default)."
    )
    draft_max: DraftLimit = None
    id_slot: int | None = between(
        -1,
        MAX_INT,
        "llama-server's: the slot from whose prefix the request goes on, with `--slot-save-path`; -1: any. Without"
        " that option it has no effect: every slot can use what any other has computed.",
    )
    sse_ping_interval: int | None = between(
        -1, MAX_INT, "llama-server's: seconds of silence until a ping; -1: no pings."
    )
    response_fields: list[Annotated[str, Field(max_length=MAX_FIELD_PATH)]] | None = Field(
        None,
        max_length=128,
        fail_fast=True,
        description=(
            "llama-server's: answer with these fields only, if not in a stream; `a/b` is the field b of a. A chat or a"
            " completion of OpenAI's dialect that has none of them is whole."
        ),
    )
    timings_per_token: bool | None = Field(
        None, description="llama-server's: add timings to every event, not to the last one only."
    )
    return_progress: bool | None = Field(
        None, description="llama-server's: stream the progress while the prompt is computed."
    )
    return_tokens: bool | None = Field(None, description="llama-server's: add the generated tokens as `tokens`.")

    @property
    def most_tokens(self) -> int | None:
        """The limit of an answer's tokens; None if only the context limits them."""
        raise NotImplementedError

    @property
    def only_warms(self) -> bool:
        return self.most_tokens == 0

    @property
    def engine_names(self) -> dict[str, str]:
        """The body's names of fields, by the engine's, where the two differ."""
        return {}

    def limits(self, config: ServerConfig) -> dict[str, Any]:
        """Return the fields of GenerationParams that are made of these, within the limits of the server."""
        return {
            "max_tokens": 0 if self.prefetch else config.limited(self.most_tokens),
            "repetition_limit": config.repetition(self.repetition_limit),
            "stop": tuple(text for text in ([self.stop] if isinstance(self.stop, str) else self.stop or ()) if text),
            "timeout": self.timeout,
            "queue_timeout": self.queue_timeout,
            "idle_timeout": self.idle_timeout,
            "reuse_prefix": self.cache_prompt is not False,
            "max_prompt_seconds": seconds(self.t_max_prompt_ms),
            "max_predict_seconds": seconds(self.t_max_predict_ms),
            "min_indent": self.n_indent or 0,
            "prompt_progress": bool(self.return_progress) and self.stream,
            "draft_max": self.draft_max,
            "adapters": self.adapters,
            "slot": self.id_slot if self.id_slot is not None and self.id_slot >= 0 else None,
        }


def chosen(whole: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the values that `paths` name, each under its path. A path without a value is left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = whole
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            found[path] = value
    return found
