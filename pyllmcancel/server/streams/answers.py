"""The body and the answers of the endpoints of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pyllmcancel.server.limits import MAX_CANCELS, MAX_NAME
from pyllmcancel.server.wire.fields import Answer, RequestBody

if TYPE_CHECKING:
    from pyllmcancel.server.streams.kept import KeptAnswer

ConversationId = Annotated[str, Field(max_length=MAX_NAME)]


class LookupBody(RequestBody):
    """The conversations whose streams are looked up."""

    conversation_ids: list[ConversationId] = Field(
        max_length=MAX_CANCELS,
        fail_fast=True,
        description="Names of conversations. A name also stands for those that have `::` and more behind it.",
        examples=[["conversation-1"]],
    )


class StreamEntry(Answer):
    """A stream that can be read, in llama-server's words."""

    conversation_id: Annotated[str, Field(description="The conversation's name, or the request's id.")]
    request_id: str
    is_done: bool
    readers: Annotated[int, Field(description="The clients that read it now.")]
    total_bytes: Annotated[int, Field(description="Bytes of the whole stream so far.")]
    dropped_bytes: Annotated[int, Field(description="The first bytes of the stream that are not kept any more.")]
    started_at: Annotated[int, Field(description="Seconds since the epoch.")]
    completed_at: Annotated[int, Field(description="Likewise; 0 until its end.")]


def stream_entry(kept: KeptAnswer) -> StreamEntry:
    return {
        "conversation_id": kept.name,
        "request_id": kept.request.id,
        "is_done": kept.log.ended,
        "readers": kept.n_readers,
        "total_bytes": kept.log.end,
        "dropped_bytes": kept.log.begin,
        "started_at": int(kept.started),
        "completed_at": int(kept.completed),
    }
