"""The bodies of ``/v1/embeddings``, and of llama-server's ``/embeddings``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AliasChoices, Field, StrictStr, field_validator, model_validator

from pyllmcancel.embeddings.request import MAX_TEXTS
from pyllmcancel.server.wire.fields import GeneratingBody, RequestBody, TokenId, optional

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine


class TextPart(RequestBody):
    type: Literal["text"]
    text: StrictStr


class TextObject(RequestBody):
    """llama-server's object: a text, or parts of one. Only text parts can be read."""

    prompt_string: StrictStr | None = None
    multimodal_data: list[str] = Field(default=[], max_length=0)
    content: list[TextPart] | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _has_one(self) -> TextObject:
        if (self.prompt_string is None) == (self.content is None):
            raise ValueError("needs prompt_string, or content")
        return self

    @property
    def text(self) -> str:
        return self.prompt_string or "".join(part.text for part in self.content or ())


TextTokens = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Mixed = Annotated[list[TokenId | StrictStr], Field(min_length=1, fail_fast=True)]
Text = str | TextTokens | Mixed | TextObject
MANY: Any = Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
INPUT = (
    "Text, or tokens, or a list of either. llama-server's: a list with a token in it is one input, of texts and tokens"
    " in a row; an object with a text may stand in the place of a text."
)
Texts = list[str | list[int | str]]
Input = str | TextTokens | Mixed | TextObject | Annotated[list[str], MANY] | Annotated[list[Text], MANY]


class WholeBody(GeneratingBody):
    """The base of bodies whose answers are not generated, and come in one piece."""

    stream: bool = Field(False, description="There is nothing to stream.", json_schema_extra={"enum": [False]})

    def check(self, engine: Engine) -> None:
        if self.idle_timeout is not None:
            self.ignore("idle_timeout")
        if self.prefetch:
            self.ignore("prefetch")

    @field_validator("stream")
    @classmethod
    def _comes_whole(cls, stream: bool) -> bool:
        if stream:
            raise ValueError("the answer comes in one piece")
        return stream


class InputBody(WholeBody):
    input: Input = Field(description=INPUT, examples=["The cat sat on the mat."])

    @property
    def texts(self) -> Texts:
        """The inputs. A list is one input if it contains a token, and many if it contains none."""
        one = not isinstance(self.input, list) or any(isinstance(part, int) for part in self.input)
        parts: Any = [self.input] if one else self.input
        return [text.text if isinstance(text, TextObject) else text for text in parts]


class EmbeddingBody(InputBody):
    """The body of ``POST /v1/embeddings``. Every field is OpenAI's unless its description says otherwise."""

    encoding_format: Literal["float", "base64"] = optional(
        "base64: the vector's numbers as little-endian 32-bit floats.", default="float"
    )
    dimensions: int | None = optional(
        "Length to which the vector is cut, before it is scaled to length 1; for models that were trained for it.", 1
    )


class LlamaEmbeddingBody(InputBody):
    """The body of ``POST /embeddings``, llama-server's own."""

    input: Input = Field(
        validation_alias=AliasChoices("input", "content"), description=INPUT, examples=["The cat sat on the mat."]
    )
    embd_normalize: Literal[2] = optional(
        "Vectors of texts have the Euclidean length 1, those of tokens are as the model has them.", default=2
    )
    encoding_format: Literal["float"] = Field("float", description="The numbers are always JSON's.")
