"""The feed's events as they are on the wire; docs/events.md explains them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.server.requests.answers import RequestEntry, SessionEntry, StepSequence, StepStatus
from pyllmcancel.server.wire.fields import Answer

At = Annotated[float, Field(description="On the server's monotonic clock, in seconds.")]


class FeedEvent(Answer):
    """The base of all events."""

    replica: NotRequired[Annotated[str, Field(description="Name of the server, if there are several.")]]


class FeedEntry(RequestEntry):
    """A request, with its texts if they are exposed."""

    prompt: NotRequired[Annotated[str, Field(description="End of the prompt.")]]
    output: NotRequired[Annotated[str | None, Field(description="Beginning of the answer, once the request is over.")]]


class AddedEvent(FeedEvent):
    type: Literal["added"]
    at: At
    request: FeedEntry


class AdmittedEvent(FeedEvent):
    type: Literal["admitted"]
    at: At
    id: str
    owner: str
    slots: list[int]
    cached_tokens: int


class StepEvent(FeedEvent):
    """A step, or several in a row that had the same sequences, phases and status."""

    type: Literal["step"]
    number: Annotated[int, Field(description="Number of the last step.")]
    n_steps: int
    at: Annotated[float, Field(description="Start of the first step.")]
    until: Annotated[float, Field(description="End of the last step.")]
    busy: Annotated[float, Field(description="Seconds of computing.")]
    status: StepStatus
    spared: bool
    survivors: int
    wasted: Annotated[int, Field(description="Tokens.")]
    threads: int
    sequences: Annotated[list[StepSequence], Field(description="Sequences, with the tokens of all the steps.")]
    others: Annotated[int, Field(description="Tokens of sequences that this reader may not see.")]


class CancelledEvent(FeedEvent):
    """A cancel was requested. The computation has stopped with the event `ended`."""

    type: Literal["cancelled"]
    at: At
    id: str
    owner: str
    reason: CancelReason
    superseded_by: str | None


class EndedEvent(FeedEvent):
    type: Literal["ended"]
    at: At
    request: FeedEntry


class Stats(Answer):
    at: At
    waiting: int
    running: int
    cancelling: int
    paused: int
    slots_used: int
    cells_used: int
    cells_idle: int
    generated_tokens: int
    prompt_tokens: int
    computed_tokens: int
    wasted_tokens: int
    reused_tokens: int
    saved_tokens: Annotated[int, Field(description="Estimate of the tokens that the cancels saved.")]
    aborted_steps: int
    cancels: dict[CancelReason, int]


class StatsEvent(Stats):
    type: Literal["stats"]
    replica: NotRequired[str]


class FeedServer(Answer):
    version: str
    boot: str
    started: Annotated[float, Field(description="Seconds since the epoch.")]


class FeedExample(Answer):
    """A request that suits the model."""

    path: str
    body: dict[str, Any]


class FeedModel(Answer):
    id: str
    description: str
    memory: str
    example: FeedExample


class FeedCapacity(Answer):
    slots: int
    cells: int
    n_ctx: int


class ServerFacts(FeedEvent):
    type: Literal["snapshot"]
    reason: Literal["new", "unknown_id", "too_old"]
    at: At
    epoch: Annotated[float, Field(description="The same moment, in seconds since the epoch.")]
    server: FeedServer
    model: FeedModel
    capacity: FeedCapacity
    all_owners: bool
    exposes_prompts: bool
    sessions: list[SessionEntry]
    stats: NotRequired[Stats]


class SnapshotEvent(ServerFacts):
    requests: list[FeedEntry]


OtherEvent = AddedEvent | AdmittedEvent | StepEvent | CancelledEvent | EndedEvent | StatsEvent
TYPES = ("snapshot", "added", "admitted", "step", "cancelled", "ended", "stats")
# For the page that describes the API.
EVENTS = (SnapshotEvent, AddedEvent, AdmittedEvent, StepEvent, CancelledEvent, EndedEvent, StatsEvent)
