"""The answer of ``/v1/audio/transcriptions``: the text that was heard, whole or in a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import Field

from pyllmcancel.server.chat.answer_parser import Content
from pyllmcancel.server.dialect import Dialect
from pyllmcancel.server.wire.fields import ABSENT, Answer, absent

if TYPE_CHECKING:
    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.server.chat.turn import ChatTurn
    from pyllmcancel.server.openai.transcription_body import TranscriptionBody


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
    """One request's answer.

    Parameters
    ----------
    seconds
        The sound's length, if the answer is to have it.
    """

    says_done = True

    def __init__(self, body: TranscriptionBody, turn: ChatTurn, seconds: float | None) -> None:
        self._body = body
        self._seconds = seconds
        self._n_audio = sum(token < 0 for token in turn.tokens)
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
        if self._body.response_format == "text":
            return text + "\n"
        answer: Transcription = {"text": text, "usage": self._usage(usage)}
        if self._body.response_format == "verbose_json":
            answer |= {"task": "transcribe", "language": self._body.language, "duration": self._seconds}
        return answer

    def _text(self, delta: Delta) -> str:
        """Return the answer's new text, without the model's reasoning."""
        parts = [*self._parser.feed(delta.text)]
        if delta.finish_reason is not None:
            parts += self._parser.finish()
        text = "".join(part.text for part in parts if isinstance(part, Content))
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
