"""``POST /v1/embeddings``: the request's body."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from pyllmcancel.embeddings.request import MAX_TEXTS
from pyllmcancel.server.wire import GeneratingBody, TokenId

TextTokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


class EmbeddingBody(GeneratingBody):
    """Every field is OpenAI's unless its description says otherwise."""

    input: (
        Annotated[str, Field(min_length=1)]
        | TextTokens
        | Annotated[
            list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
        ]
        | Annotated[list[TextTokens], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)]
    ) = Field(description="Text, or tokens, or a list of either.", examples=["The cat sat on the mat."])
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="base64: of the vector's numbers as little-endian 32-bit floats."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Cut to so many numbers, and scaled to length 1 again; for models that were trained for it.",
    )
    stream: bool = Field(False, description="There is nothing to stream.", json_schema_extra={"enum": [False]})

    @field_validator("stream")
    @classmethod
    def _comes_whole(cls, stream: bool) -> bool:
        if stream:
            raise ValueError("embeddings come in one piece")
        return stream

    @property
    def texts(self) -> list[str | list[int]]:
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [self.input]
        return list(self.input)
