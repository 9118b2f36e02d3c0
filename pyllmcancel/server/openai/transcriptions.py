"""``/v1/audio/transcriptions``: the body, a form with a sound; the chat that it becomes, in which a model that hears is
asked to transcribe; and the text as the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from fastapi import APIRouter
from pydantic import Field, StringConstraints, field_validator
from pydantic_core import from_json

from pyllmcancel.errors import InvalidRequestError
from pyllmcancel.media.errors import BadMedia
from pyllmcancel.media.sounds import check_sound
from pyllmcancel.server.bodies import FieldNames, Incoming, reads
from pyllmcancel.server.chat.answer_parser import Content
from pyllmcancel.server.chat.body import ChatBody
from pyllmcancel.server.chat.messages import ContentPart, Message, TextPart
from pyllmcancel.server.chat.turn import ChatTurn, chat_turn
from pyllmcancel.server.dialect import Dialect
from pyllmcancel.server.generate import generate
from pyllmcancel.server.media.parts import AudioPart
from pyllmcancel.server.openapi.description import answers
from pyllmcancel.server.wire.fields import ABSENT, Answer, GeneratingBody, absent, optional
from pyllmcancel.server.wire.sampling import extra

if TYPE_CHECKING:
    from pyllmcancel.engine.engine import Engine
    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.pausing import Pause


router = APIRouter(tags=["OpenAI"])
NAMES = FieldNames({"messages": "file", "n_predict": "max_tokens"})
# As llama-server asks.
INSTRUCTION = "Transcribe audio to text"


class TranscriptionBody(GeneratingBody):
    refused_fields: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **dict.fromkeys(("include", "known_speaker_names", "known_speaker_references", "timestamp_granularities"), ()),
        "chunking_strategy": ("auto",),
    }

    file: bytes = Field(
        description="The sound: WAV without compression, MP3 or FLAC.", json_schema_extra={"format": "binary"}
    )
    prompt: str = optional(
        "The instruction before the sound. As with llama-server, it takes the place of ours.", default=INSTRUCTION
    )
    language: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z -]{0,63}$")] | None = optional(
        "The language that is spoken; the instruction names it."
    )
    response_format: Literal["json", "text", "verbose_json"] = optional(
        "`verbose_json` adds the length, and has no segments, since models here give no times. A stream has `json`.",
        default="json",
    )
    temperature: float | None = optional("0, the default, takes the likeliest token.", 0, 100)
    max_tokens: int | None = extra("llama-server's: limit of the answer.", 1, lt=2**31)

    @field_validator("priority", "prefetch", "keep_going", "repetition_limit", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Convert the text of a form's field to a number or a truth value, which other bodies have."""
        try:
            return from_json(value) if isinstance(value, str) else value
        except ValueError:
            return value

    def check(self, engine: Engine) -> None:
        if self.stream and self.response_format != "json":
            raise InvalidRequestError(f"a stream cannot have the form {self.response_format}", "response_format")

    def as_chat(self) -> ChatBody:
        """Return the chat in which the model is asked to transcribe."""
        language = "" if self.language is None else f" (language: {self.language})"
        parts: list[ContentPart] = [TextPart(text=self.prompt + language), AudioPart.of(bytes(self.file))]
        return ChatBody(
            **{name: getattr(self, name) for name in GeneratingBody.model_fields},
            messages=[Message(role="user", content=parts)],
            temperature=0.0 if self.temperature is None else self.temperature,
            n_predict=self.max_tokens,
        )


class InputDetails(Answer):
    text_tokens: int
    audio_tokens: Annotated[int, Field(description="Rows of the sound's embedding.")]
    cached_tokens: Annotated[int, Field(description="Tokens that came from the cache.")]


class TranscriptionUsage(Answer):
    type: Literal["tokens"]
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: InputDetails


class Transcription(Answer):
    text: str
    usage: TranscriptionUsage
    # In verbose_json only.
    task: NotRequired[Annotated[Literal["transcribe"] | None, ABSENT]]
    language: NotRequired[Annotated[str | None, absent("The language that was named.")]]
    duration: NotRequired[Annotated[float | None, absent("Seconds of the sound.")]]


class TranscriptTextDelta(Answer):
    type: Literal["transcript.text.delta"]
    delta: str


class TranscriptTextDone(Answer):
    type: Literal["transcript.text.done"]
    text: str
    usage: TranscriptionUsage


class TranscriptionDialect(Dialect):
    """One request's answer, which has the sound's length if that is given."""

    says_done = True

    def __init__(self, body: TranscriptionBody, turn: ChatTurn, seconds: float | None) -> None:
        self._form, self._language = body.response_format, body.language
        self._seconds = seconds
        self._n_audio = sum(token < 0 for token in turn.prompts[0])
        self._parser = turn.new_parser()
        self._said: list[str] = []

    def chunks(self, delta: Delta) -> Iterable[TranscriptTextDelta]:
        text = self._text(delta)
        if text:
            yield {"type": "transcript.text.delta", "delta": text}

    def closing(self, usage: Usage) -> Iterable[TranscriptTextDone]:
        yield {"type": "transcript.text.done", "text": "".join(self._said), "usage": self._usage(usage)}

    def whole(self, deltas: list[Delta], usage: Usage) -> Mapping[str, Any] | str:
        text = "".join(map(self._text, deltas)).strip()
        if self._form == "text":
            return text + "\n"
        answer: Transcription = {"text": text, "usage": self._usage(usage)}
        if self._form == "verbose_json":
            answer |= {"task": "transcribe", "language": self._language, "duration": self._seconds}
        return answer

    def _text(self, delta: Delta) -> str:
        """Return the answer's new text, without the model's reasoning."""
        text = "".join(part.text for part in self._parser.feed(delta) if isinstance(part, Content))
        self._said.append(text)
        return text

    def _usage(self, usage: Usage) -> TranscriptionUsage:
        return {
            "type": "tokens",
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "input_token_details": {
                "text_tokens": usage.prompt_tokens - self._n_audio,
                "audio_tokens": self._n_audio,
                "cached_tokens": usage.cached_tokens,
            },
        }


@router.post(
    "/v1/audio/transcriptions",
    summary="Transcribe a sound, by a model that hears",
    responses=answers(Transcription, TranscriptTextDelta, TranscriptTextDone),
)
@router.post("/audio/transcriptions", include_in_schema=False)  # llama-server has it without a version, too
async def transcriptions(
    incoming: Annotated[Incoming[TranscriptionBody], reads(TranscriptionBody, is_form=True)],
) -> Any:
    body = incoming.body

    def work(pause: Pause) -> float | None:
        """Return the sound's length for an answer that has it. A bad sound is refused where every sound is."""
        try:
            return check_sound(body.file, float("inf"), pause) if body.response_format == "verbose_json" else None
        except BadMedia:
            return None

    with NAMES.in_errors():
        seconds = await incoming.prepare(work)
        chat = incoming.asking(body.as_chat(), NAMES)
        turn = await chat_turn(chat)
        return await generate(turn, TranscriptionDialect(body, turn, seconds))
