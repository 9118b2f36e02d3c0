"""The fields that the answers of OpenAI's two endpoints share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, NotRequired

from pyllmcancel import __version__
from pyllmcancel.events import FinishReason
from pyllmcancel.server.http.request_context import created_at_of, request_id_of
from pyllmcancel.server.state import state_of
from pyllmcancel.server.wire.fields import ABSENT, Answer
from pyllmcancel.server.wire.timings import PromptProgress, Timings
from pyllmcancel.server.wire.usage import UsageAnswer

if TYPE_CHECKING:
    from fastapi import Request

    from pyllmcancel.events import Delta
    from pyllmcancel.server.wire.generation import OpenAIBody

# The facts besides the seed that a seed's answers depend on.
FINGERPRINT = f"pyllmcancel-{__version__}"

Finish = Literal["stop", "length"]
FINISH: dict[FinishReason | None, Finish] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Envelope(Answer):
    """The fields that answers and chunks begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    # As in llama-server.
    timings: NotRequired[Annotated[Timings | None, ABSENT]]
    prompt_progress: NotRequired[Annotated[PromptProgress | None, ABSENT]]


class ChunkUsage(Answer):
    usage: NotRequired[Annotated[UsageAnswer | None, ABSENT]]


def chunk_usage(body: OpenAIBody) -> ChunkUsage:
    """Return the usage in every chunk but the last: as with OpenAI, null if usage was asked for, and else left out."""
    return {"usage": None} if body.includes_usage else {}


def envelope_of(request: Request, prefix: str) -> Envelope:
    return {
        "id": f"{prefix}{request_id_of(request.scope)}",
        "created": int(created_at_of(request.scope)),
        "model": state_of(request).model_name,
        "system_fingerprint": FINGERPRINT,
    }


def by_choice(deltas: list[Delta], n_choices: int) -> list[list[Delta]]:
    found: list[list[Delta]] = [[] for _ in range(n_choices)]
    for delta in deltas:
        found[delta.index].append(delta)
    return found
