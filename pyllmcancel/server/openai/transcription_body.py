"""The body of ``/v1/audio/transcriptions``, a form with a sound, and the chat that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator
from pydantic_core import from_json

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.messages import ContentPart, Message, TextPart
from pyllmcancel.server.media.parts import AudioPart
from pyllmcancel.server.wire.fields import GeneratingBody
from pyllmcancel.server.wire.sampling import extra

# As llama-server asks.
INSTRUCTION = "Transcribe audio to text"


class TranscriptionBody(GeneratingBody):
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "chunking_strategy": ("auto",),
        "include": (),
        "known_speaker_names": (),
        "known_speaker_references": (),
        "timestamp_granularities": (),
    }

    file: bytes = Field(
        description="The sound: WAV without compression, MP3 or FLAC.", json_schema_extra={"format": "binary"}
    )
    prompt: str = Field(
        INSTRUCTION, description="The instruction before the sound. As with llama-server, it takes the place of ours."
    )
    language: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z -]{0,63}$")] | None = Field(
        None, description="The language that is spoken; the instruction names it."
    )
    response_format: Literal["json", "text", "verbose_json"] = Field(
        "json",
        description=(
            "`verbose_json` adds the length, and has no segments, since models here give no times. A stream has `json`."
        ),
    )
    temperature: float | None = Field(None, ge=0, le=100, description="0, the default, takes the likeliest token.")
    max_tokens: int | None = Field(None, ge=1, lt=2**31, description=extra("llama-server's: limit of the answer."))

    @field_validator("priority", "keep_going", "repetition_limit", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Convert the text of a form's field to a number or a truth value, which other bodies have."""
        try:
            return from_json(value) if isinstance(value, str) else value
        except ValueError:
            return value

    def check(self) -> None:
        """Raise InvalidRequestError for fields that contradict each other."""
        if self.stream and self.response_format != "json":
            raise InvalidRequestError(f"a stream cannot have the form {self.response_format}", "response_format")

    def as_chat(self) -> ChatBody:
        """Return the chat in which the model is asked to transcribe."""
        language = "" if self.language is None else f" (language: {self.language})"
        parts: list[ContentPart] = [TextPart(text=self.prompt + language), AudioPart.of(self.file)]
        return ChatBody(
            **{name: getattr(self, name) for name in GeneratingBody.model_fields},
            messages=[Message(role="user", content=parts)],
            temperature=0.0 if self.temperature is None else self.temperature,
            n_predict=self.max_tokens,
        )
