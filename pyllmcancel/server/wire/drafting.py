"""Fields that decide what an answer is drafted from. They change its speed, never its tokens."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pyllmcancel.server.wire.fields import RequestBody, Sent
from pyllmcancel.server.wire.sampling import MAX_INT

MAX_PARTS = 1_024

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
    content: str | Annotated[list[PredictedText], Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class DraftFields(Sent):
    prediction: Prediction | None = Field(
        None,
        description="Text that much of the answer is expected to consist of: the answer is the same, and comes faster.",
        examples=[{"type": "content", "content": "def add(a, b):\n    return a + b\n"}],
    )
