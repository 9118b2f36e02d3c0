"""What the server answers, as pydantic models: for the OpenAPI page. The routes write plain dicts; tests compare."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.request import FinishReason, RequestStatus


class Answer(BaseModel):
    """Base of all: nothing is answered that is not described."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class PromptTokensDetails(Answer):
    cached_tokens: int = Field(ge=0, description="Those that came from the cache.")


class UsageAnswer(Answer):
    """After a cancel: what had been processed by then."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)
    prompt_tokens_details: PromptTokensDetails


class ErrorDetails(Answer):
    message: str
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="For programs: what is wrong, or why the request was cancelled.")
    request_id: str
    n_prompt_tokens: int = Field(0, description="With `context_length_exceeded`: tokens of the prompt.")
    n_ctx: int = Field(0, description="With `context_length_exceeded`: tokens of context.")


class ErrorAnswer(Answer):
    """OpenAI's shape; `usage` is there when the request had begun."""

    error: ErrorDetails
    usage: UsageAnswer | None = None


class ModelFacts(Answer):
    description: str
    n_params: int
    size: int = Field(description="Of all tensors, in bytes.")
    n_ctx_train: int
    n_ctx: int = Field(description="Most tokens of one request, prompt and answer together.")
    n_embd: int
    n_vocab: int
    memory_kind: Literal["attention", "recurrent", "hybrid", "none"]


class ModelEntry(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    aliases: list[str]
    tags: list[str]
    meta: ModelFacts


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelEntry]


OutsideStatus = Literal["waiting", "running", "cancelling", "finished", "cancelled", "error"]


class RequestEntry(Answer):
    id: str
    object: Literal["request"]
    status: OutsideStatus
    phase: RequestStatus = Field(description="Where it is, or was when it ended.")
    session: str | None
    n: int = Field(ge=1, description="Choices.")
    slots: list[int]
    prompt_tokens: int
    prompt_tokens_done: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: FinishReason | None
    cancel_reason: CancelReason | None
    superseded_by: str | None
    cancel_latency_ms: float | None
    error: str | None
    created: float = Field(description="Seconds since the epoch.")
    seconds: float = Field(description="Its age, or how long it lived.")


class RequestList(Answer):
    object: Literal["list"]
    data: list[RequestEntry]


class CancelAnswer(Answer):
    id: str
    outcome: Literal["cancelled", "already_finished"]
    reason: CancelReason | FinishReason
    phase: RequestStatus = Field(description="Where the request was when it ended.")
    cancel_latency_ms: float | None = Field(description="From cancel to stopped; null if it had not stopped yet.")
    usage: UsageAnswer


class SessionCancelAnswer(CancelAnswer):
    session: str


class HeldAnswer(Answer):
    """The id is not known yet: it is cancelled on arrival, if it comes in time."""

    id: str
    outcome: Literal["held"]
    hold_seconds: float


class HeldSessionAnswer(Answer):
    session: str
    outcome: Literal["held"]
    hold_seconds: float


class StepSequence(Answer):
    request: str
    choice: int
    phase: str
    n_tokens: int


class StepEntry(Answer):
    number: int
    started_at: float = Field(description="On the server's monotonic clock, in seconds.")
    seconds: float
    sequences: list[StepSequence]
    status: Literal["ok", "aborted", "no_room", "invalid", "failed_alloc", "failed_compute"]
    spared: bool = Field(description="A member was cancelled, and the step finished for the others.")
    survivors: int
    threads: int = Field(description="That computed it.")


class StepList(Answer):
    object: Literal["list"]
    n_steps: int
    data: list[StepEntry]


class Healthy(Answer):
    status: Literal["ok"]
    waiting: int
    running: int


class Unhealthy(Answer):
    """Not OpenAI's shape: it is a state, and nothing that a request did wrong."""

    status: Literal["loading", "failed", "stalled"]
    progress: float | None = Field(None, ge=0, le=1)
    error: str | None
