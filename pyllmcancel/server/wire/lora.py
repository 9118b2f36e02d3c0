"""`lora` of bodies: the adapters that compute a request, and their scales. llama-server's."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, model_validator

from pyllmcancel.server.wire.fields import RequestBody, Sent
from pyllmcancel.server.wire.sampling import MAX_INT

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
