"""The answers of our own endpoints: requests, their cancels, and the engine's last steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, cast

from pydantic import Field

from pyllmcancel.cancellation import CancelReason, Deadline
from pyllmcancel.events import Ending, FinishReason, RequestStatus
from pyllmcancel.requests.families import SessionSummary
from pyllmcancel.requests.observer import StepPart, StepRecord
from pyllmcancel.requests.request import IDLE, RequestSummary
from pyllmcancel.server.wire.fields import Answer, absent
from pyllmcancel.server.wire.usage import UsageAnswer, usage_json

OutsideStatus = Literal["waiting", "running", "cancelling", "finished", "cancelled", "error"]
LiveStatus = Literal["waiting", "running"]
StepStatus = Literal["ok", "aborted", "no_room", "invalid", "failed_alloc", "failed_compute"]

SHOWN = (  # the fields of a request that have the same names in its summary
    *("owner", "session", "supersede", "n", "paused", "max_tokens", "cancel_reason", "superseded_by"),
    *("prompt_tokens", "prompt_tokens_done", "cached_tokens", "completion_tokens"),
)


class TimesAnswer(Answer):
    """Times on the server's monotonic clock, in seconds; null until the event happens."""

    arrived: float
    admitted: Annotated[float | None, Field(description="The request got its first slot.")]
    first_token: float | None
    cancelled: Annotated[float | None, Field(description="The cancel was requested.")]
    ended: Annotated[float | None, Field(description="Nothing is computed for it any more, and its slots are free.")]


class DraftEntry(Answer):
    source: Annotated[
        str,
        Field(
            description=(
                "`past`: the owner's earlier answers; `prediction`: the request's; `ngram`: the prompt and the answer;"
                " `model`: the draft model; `heads`: the model's own heads."
            )
        ),
    ]
    drafted: Annotated[int, Field(description="Tokens.")]
    accepted: Annotated[int, Field(description="Those of them that are part of the answer.")]


class LoraEntry(Answer):
    id: int
    scale: float


class RequestEntry(Answer):
    id: str
    object: Literal["request"]
    status: OutsideStatus
    phase: Annotated[RequestStatus, Field(description="The phase of the request, or its last one.")]
    owner: Annotated[str, Field(description="Owner of the API key that the request came with.")]
    session: str | None
    parent_session: str | None
    supersede: Annotated[str | None, Field(description="The key under which the newest request lives.")]
    priority: int | Literal["idle"]
    n: Annotated[int, Field(ge=1, description="Choices.")]
    slots: list[int]
    paused: Annotated[bool, Field(description="It has no slot: its client reads too little, or others come first.")]
    readers: NotRequired[
        Annotated[int | None, absent("Clients that read a stream that can be taken up again. At 0 it is kept going.")]
    ]
    position: NotRequired[Annotated[int | None, absent("In the queue for a slot or a model; 1: the next.")]]
    tokens_ahead: NotRequired[Annotated[int | None, absent("Expected tokens of what runs, or starts before it.")]]
    seconds_ahead: NotRequired[Annotated[float | None, absent("Expected seconds until it starts.")]]
    prompt_tokens: int
    prompt_tokens_done: int
    cached_tokens: int
    completion_tokens: int
    drafts: NotRequired[Annotated[list[DraftEntry], Field(default=[], description="The sources of drafted tokens.")]]
    lora: NotRequired[Annotated[list[LoraEntry], Field(default=[], description="LoRA adapters that compute it.")]]
    max_tokens: Annotated[int | None, Field(description="Limit of each choice's tokens; null: the context's size.")]
    finish_reason: FinishReason | None
    cancel_reason: CancelReason | None
    detail: NotRequired[Annotated[Deadline | None, absent("The deadline that has passed, if one has.")]]
    superseded_by: str | None
    cancel_latency_ms: float | None
    error: str | None
    created: Annotated[float, Field(description="Seconds since the epoch.")]
    seconds: Annotated[float, Field(description="Age of the request, or its whole duration.")]
    times: TimesAnswer
    model: NotRequired[Annotated[str | None, absent("With several models: the request's.")]]
    replica: NotRequired[Annotated[str | None, absent("With several processes: the one that has the request.")]]


class RequestList(Answer):
    object: Literal["list"]
    data: list[RequestEntry]


class CancelAnswer(Answer):
    id: str
    outcome: Literal["cancelled", "already_finished"]
    reason: CancelReason | FinishReason
    phase: Annotated[RequestStatus, Field(description="The request's phase when it ended.")]
    cancel_latency_ms: Annotated[float | None, Field(description="From cancel to stopped; null before it has stopped.")]
    usage: UsageAnswer


class HeldAnswer(Answer):
    """The id is not known yet. A request of this id is cancelled on arrival, if it comes in time."""

    id: str
    outcome: Literal["held"]
    hold_seconds: float


class UnknownAnswer(Answer):
    id: str
    outcome: Literal["unknown"]


class CancelList(Answer):
    """The cancels, in the order of `request_ids`, or oldest first."""

    object: Literal["list"]
    data: list[CancelAnswer | HeldAnswer | UnknownAnswer]


class SessionEntry(Answer):
    id: str
    object: Literal["session"]
    owner: Annotated[str, Field(description="Owner of the API key that the session came with.")]
    parent: str | None
    children: list[str]
    requests: Annotated[list[str], Field(description="Ids of the live requests, oldest first.")]
    n_requests: Annotated[int, Field(description="Number of requests that the session has had.")]
    created: Annotated[float, Field(description="Seconds since the epoch.")]
    used: Annotated[float, Field(description="Time of its last request, or of a descendant's.")]


class SessionList(Answer):
    object: Literal["list"]
    data: list[SessionEntry]


class SessionCancelAnswer(Answer):
    session: str
    descendants: bool
    requests: Annotated[list[CancelAnswer], Field(description="The requests that had not ended.")]
    hold_seconds: Annotated[float | None, Field(description="Seconds in which new requests are cancelled on arrival.")]


class StepSequence(Answer):
    request: str
    choice: int
    slot: Annotated[int, Field(description="A number below the number of slots and idle prefixes together.")]
    phase: str
    n_tokens: int
    n_drafted: NotRequired[Annotated[int, Field(default=0, description="The last of these tokens, which are a draft.")]]
    n_accepted: NotRequired[Annotated[int, Field(default=0, description="Drafted tokens that are in the answer.")]]


class StepMember(StepSequence):
    max_tokens: Annotated[int, Field(description="Limit of the tokens that may be generated; 0 for a text to embed.")]
    n_generated: Annotated[int, Field(description="Tokens generated before this step.")]
    cancelled: Annotated[bool, Field(description="A cancel came before the step's end.")]


class StepEntry(Answer):
    number: int
    started_at: Annotated[float, Field(description="On the server's monotonic clock, in seconds.")]
    seconds: float
    sequences: list[StepMember]
    left: Annotated[list[str], Field(description="Ids of requests that ended between this step's start and the next.")]
    status: StepStatus
    spared: Annotated[bool, Field(description="A member was cancelled, and the step finished for the others.")]
    survivors: int
    threads: Annotated[int, Field(description="Number of threads that computed the step.")]


class StepList(Answer):
    object: Literal["list"]
    n_steps: int
    data: list[StepEntry]


def request_entry(summary: RequestSummary) -> RequestEntry:
    ending = summary.ending
    phase = summary.status if ending is None else ending.phase
    entry: dict[str, Any] = {"id": summary.id, "object": "request", "status": outside_status(summary), "phase": phase}
    entry |= {name: getattr(summary, name) for name in SHOWN}
    entry |= {
        "parent_session": summary.parent,
        "priority": "idle" if summary.priority == IDLE else summary.priority,
        "slots": list(summary.slots),
        "drafts": [DraftEntry(source=source, drafted=n, accepted=accepted) for source, n, accepted in summary.drafts],
        "lora": [LoraEntry(id=number, scale=scale) for number, scale in summary.adapters],
        "finish_reason": None if ending is None else ending.finish_reason,
        "cancel_latency_ms": None if ending is None else milliseconds(ending.cancel_latency),
        "error": None if ending is None else ending.error,
        "created": summary.created_at,
        "seconds": round(summary.seconds, 4),
        "times": summary.times._asdict(),
    }
    few = {"detail": summary.deadline, "model": summary.model, "replica": summary.replica}
    return cast("RequestEntry", entry | {name: value for name, value in few.items() if value is not None})


def session_entry(summary: SessionSummary) -> SessionEntry:
    return cast("SessionEntry", {"object": "session", **summary._asdict()})


def outside_status(summary: RequestSummary) -> OutsideStatus:
    """Return the status for clients: "cancelling" is derived, and an ended request shows its ending."""
    match summary.ending:
        case None if summary.cancel_reason is not None:
            return "cancelling"
        case None:
            waits = summary.status in (RequestStatus.PREPARING, RequestStatus.LOADING, RequestStatus.WAITING)
            return "waiting" if waits else "running"
        case ending if ending.finish_reason is FinishReason.CANCELLED:
            return "cancelled"
        case ending if ending.finish_reason is FinishReason.ERROR:
            return "error"
        case _:
            return "finished"


def cancel_answer(request_id: str, ending: Ending, *, before: bool = False) -> CancelAnswer:
    """Return the answer to a cancel of a request that has ended, maybe `before` the cancel came."""
    cancelled = ending.finish_reason is FinishReason.CANCELLED and not before
    return {
        "id": request_id,
        "outcome": "cancelled" if cancelled else "already_finished",
        "reason": ending.cancel_reason or ending.finish_reason,
        "phase": ending.phase,
        "cancel_latency_ms": milliseconds(ending.cancel_latency),
        "usage": usage_json(ending.usage),
    }


def step_entry(record: StepRecord) -> StepEntry:
    parts = zip(record.sequences, record.states, strict=True)
    sequences = [{**step_sequence(part), **state._asdict()} for part, state in parts]
    same = {name: getattr(record, name) for name in StepEntry.__annotations__}
    return cast("StepEntry", same | {"sequences": sequences, "left": list(record.left)})


def step_sequence(part: StepPart) -> StepSequence:
    return cast("StepSequence", {name: getattr(part, name) for name in StepSequence.__annotations__})


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
