"""``/v1/audio/transcriptions``: a chat in which a model that hears is asked to transcribe a sound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter

from pyllmcancel.media.errors import BadMedia
from pyllmcancel.media.sounds import check_sound
from pyllmcancel.server.bodies import Incoming, reads
from pyllmcancel.server.chat.turn import chat_turn
from pyllmcancel.server.generate import generate
from pyllmcancel.server.http.forms import FORM
from pyllmcancel.server.openai.transcriptions import (
    Transcription,
    TranscriptionBody,
    TranscriptionDialect,
    TranscriptTextDelta,
    TranscriptTextDone,
)
from pyllmcancel.server.openapi.description import GENERATION_ERRORS, answers, asks, errors
from pyllmcancel.server.wire.field_names import FieldNames

if TYPE_CHECKING:
    from pyllmcancel.pausing import Pause

router = APIRouter(tags=["OpenAI"], responses=errors(*GENERATION_ERRORS))
NAMES = FieldNames({"messages": "file", "n_predict": "max_tokens"})


@router.post(
    "/v1/audio/transcriptions",
    summary="Transcribe a sound, by a model that hears",
    openapi_extra=asks(TranscriptionBody, FORM),
    responses=answers(Transcription, TranscriptTextDelta, TranscriptTextDone),
)
@router.post("/audio/transcriptions", include_in_schema=False)  # llama-server has it without a version, too
async def transcriptions(
    incoming: Annotated[Incoming[TranscriptionBody], reads(TranscriptionBody, is_form=True)],
) -> Any:
    body = incoming.body
    body.check()

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
        return await generate(chat, [turn.tokens], turn.params, TranscriptionDialect(body, turn, seconds))
