"""Messages between replicas, and the reply to each of them.

Messages are plain JSON, whatever carries them. Both sides check them: a replica may be of another version, or not what
it claims to be.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.request import Rank
from pyllmcancel.server.limits import MAX_CANCELS, MAX_NAME
from pyllmcancel.server.live.events import SnapshotEvent
from pyllmcancel.server.requests.answers import CancelAnswer, LiveStatus, OutsideStatus, RequestEntry, SessionEntry
from pyllmcancel.server.state import Asked

# characters of an id, a name or a key; keys that a server makes contain a user's name
MAX_TEXT = MAX_NAME + 256
MAX_KNOWN = 4_096  # sessions in one reply: more than an owner has on one server
MAX_NEWS = 256  # in one message
MAX_HOLD = 60.0  # seconds

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Seconds = Annotated[float, Field(ge=0, le=MAX_HOLD)]
Known = Annotated[list[Text], Field(max_length=MAX_KNOWN)]
Names = Annotated[list[Text], Field(min_length=1, max_length=MAX_CANCELS)]


class Said(BaseModel):
    """The base of all. An unknown field is refused, because ignoring it could ignore a condition."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class News(Said):
    """A request with a supersede key that was accepted."""

    owner: Text
    key: Text
    arrived_us: Annotated[int, Field(ge=0, lt=1 << 63)]
    id: Text

    @property
    def rank(self) -> Rank:
        return Rank(self.arrived_us, self.id)


# -- replies ----------------------------------------------------------------------------------------------------------


class Reply(Said):
    """The base of all replies to messages."""


class Newer(Reply):
    """Requests that are newer than those of a message, with the same keys."""

    newer: list[News]


class Cancelled(Reply):
    """By id: the requests that were cancelled, and those that had ended before."""

    live: dict[str, list[CancelAnswer]]
    ended: dict[str, list[CancelAnswer]]


class FamilyCancelled(Reply):
    """The result of cancelling families; `sessions` are the known ones of those that were named, and their
    descendants.
    """

    sessions: Known
    requests: list[CancelAnswer]


class Matched(Reply):
    requests: list[CancelAnswer]


class Owned(Reply):
    """The owners, by id or name."""

    owners: dict[str, list[str]]


class Named(Reply):
    sessions: Known


class Requests(Reply):
    data: list[RequestEntry]


class Sessions(Reply):
    data: list[SessionEntry]


class Snapshot(Reply):
    """The present state: an event of the feed."""

    event: SnapshotEvent


class Refused(Said):
    """An error, as the client of that replica would get it."""

    status: Annotated[int, Field(ge=400, le=599)]
    message: str
    param: str | None
    code: str | None


class Responded(Reply):
    """The answer or the error about a response; neither if the response is not there."""

    found: dict[str, Any] | None = None
    refused: Refused | None = None


class StreamKnown(Reply):
    """True if the stream is there, or was until it was cancelled."""

    found: bool


class Nothing(Reply):
    """An empty reply: a stream follows instead."""


# -- messages; an `owner` of None is an administrator, who means all owners -------------------------------------------


class Message(Said):
    """The base of all messages; `kind` says which one it is."""

    reply: ClassVar[type[Reply]]


class Superseding(Message):
    """News of accepted requests: older requests of their keys are to be cancelled."""

    reply = Newer
    kind: Literal["superseding"] = "superseding"
    news: Annotated[list[News], Field(min_length=1, max_length=MAX_NEWS)]


class Cancel(Message):
    """Cancel the requests of these ids; with `hold` also those that arrive within `hold` seconds, and with
    `on_their_way` those that have arrived at the server in front, and are accepted later.
    """

    reply = Cancelled
    kind: Literal["cancel"] = "cancel"
    owner: Text
    ids: Names
    wait: bool
    hold: Seconds = 0.0
    on_their_way: bool = False
    reason: CancelReason = CancelReason.EXPLICIT


class Leave(Message):
    """The client of a request whose stream can be taken up again has left the server in front."""

    reply = Nothing
    kind: Literal["leave"] = "leave"
    owner: Text
    id: Text


class NameFamilies(Message):
    """Name the known sessions among these and those below them."""

    reply = Named
    kind: Literal["name_families"] = "name_families"
    owner: Text
    sessions: Names


class CancelFamilies(Message):
    """Cancel the requests of these sessions and, with `descendants`, of those below them."""

    reply = FamilyCancelled
    kind: Literal["cancel_families"] = "cancel_families"
    owner: Text
    sessions: Names
    descendants: bool
    wait: bool
    hold: Seconds = 0.0


class CancelMatching(Message):
    """Cancel all live requests that match a filter."""

    reply = Matched
    kind: Literal["cancel_matching"] = "cancel_matching"
    owner: Text | None
    session: Text | None
    status: LiveStatus | None
    wait: bool


class WhoseRequest(Message):
    """Name the owners that have a request of one of these ids."""

    reply = Owned
    kind: Literal["whose_request"] = "whose_request"
    ids: Names


class WhoseSession(Message):
    """Name the owners that have a session of one of these names."""

    reply = Owned
    kind: Literal["whose_session"] = "whose_session"
    sessions: Names


class ListRequests(Message):
    """List all requests, or those of these ids."""

    reply = Requests
    kind: Literal["list_requests"] = "list_requests"
    owner: Text | None
    ids: Names | None = None
    session: Text | None = None
    status: OutsideStatus | None = None


class ListSessions(Message):
    """List all sessions, or the one of this name."""

    reply = Sessions
    kind: Literal["list_sessions"] = "list_sessions"
    owner: Text | None
    name: Text | None = None


class AskResponse(Message):
    """A question about a response that was created before, or its cancel or deletion."""

    reply = Responded
    kind: Literal["ask_response"] = "ask_response"
    owner: Text
    id: Text
    asked: Asked


class AskStream(Message):
    """Ask for a stream that can be taken up again; with `delete` it is cancelled, and forgotten."""

    reply = StreamKnown
    kind: Literal["ask_stream"] = "ask_stream"
    owner: Text
    id: Text
    delete: bool


class TakeSnapshot(Message):
    """Report the present state, as in the feed's first event."""

    reply = Snapshot
    kind: Literal["take_snapshot"] = "take_snapshot"
    owner: Text | None


class Follow(Message):
    """Stream the events of that replica only, for all owners, as ``GET /v1/events`` does; steps also name `owners`.

    Only the HTTP transport uses this message. The stream begins after the event of this id, if that is remembered.
    """

    reply = Nothing
    kind: Literal["follow"] = "follow"
    last_event_id: Annotated[str | None, Field(max_length=64)] = None


AnyMessage = Annotated[
    Superseding
    | Cancel
    | Leave
    | NameFamilies
    | CancelFamilies
    | CancelMatching
    | WhoseRequest
    | WhoseSession
    | ListRequests
    | ListSessions
    | TakeSnapshot
    | AskResponse
    | AskStream,
    Field(discriminator="kind"),
]
MESSAGES: TypeAdapter[Message] = TypeAdapter(AnyMessage)
