"""A request and its choices, from its arrival to its ending.

One thread at most is responsible for a request. While it is prepared, that is the thread that does some work for it,
and none between two pieces of work. None is responsible while it is in the waiting queue; then the engine thread is,
which admits it, or the canceller that withdraws it. A canceller may also withdraw a running request from the engine
thread, while a step runs that does not compute the request. Only the responsible thread writes its mutable fields;
others read them. The exceptions are its names and `superseded_by`, which the registry writes under its lock.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypedDict, Unpack

from pyllmcancel.adapters import UNADAPTED, Adapted, Scales
from pyllmcancel.cancellation import Cancellation, CancelReason, Deadline
from pyllmcancel.drafting.answer_drafts import AnswerDrafts
from pyllmcancel.drafting.sources import PAST, PREDICTION, SOURCES
from pyllmcancel.errors import InvalidRequestError, RequestCancelled
from pyllmcancel.events import NO_SINK, Drafted, Ending, FinishReason, RequestStatus, Sink, TokenLogprobs, Usage
from pyllmcancel.media.values import MediaRun
from pyllmcancel.requests.detokenizer import Detokenizer
from pyllmcancel.requests.params import NO_PARAMS

if TYPE_CHECKING:
    from pyllmcancel._native import MediaChunk, Sampler
    from pyllmcancel.constraints.protocol import Constraint


NO_OWNER = ""  # the owner of requests without an API key
# The priority of requests that compute only while no others wait or compute. Others have larger ones.
IDLE = -(2**31) - 1


@dataclass(eq=False, slots=True)
class Choice:
    """One sequence of a request: its prompt, its generated tokens, and its slot.

    Of the `n` choices of one prompt the first is the leader: it computes the prompt, the others share its cells.
    """

    request: Request
    index: int
    prompt: Sequence[int]
    sampler: Sampler
    max_tokens: int
    detokenizer: Detokenizer
    media: Sequence[MediaRun] = ()  # the runs of the prompt's tokens that are not text
    adapted: Adapted = UNADAPTED  # the adapters that compute its tokens
    generated: list[int] = field(default_factory=list)
    given_back: bytes = b""  # the text of the prompt's last word, with which the answer has to begin
    certain: Sequence[int] = ()  # tokens that certainly come next, to be generated once the prompt is computed
    known: Sequence[int] = ()  # the answer's first tokens, if it was begun elsewhere: they are generated again
    seq: int | None = None  # set while the choice holds a slot
    n_committed: int = 0  # a copy of `Context.n_committed`, written by the engine thread; kept without a slot
    n_cached: int = 0  # tokens that its first admission found in the cache
    admitted_before: bool = False
    slot: int | None = None  # the `seq` that the choice has, or had last
    admitted_at: float | None = None  # this one and the next two are in monotonic seconds
    first_token_at: float | None = None
    last_token_at: float | None = None
    resumes: bool = False  # True if the next token is the first one after a pause
    has_line_feed: bool = False
    finish_reason: FinishReason | None = None
    constraint: Constraint | None = None
    drafts: AnswerDrafts | None = None  # from its first decode step on
    n_certain: int = 0  # generated tokens that were certain
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # kept until the next delta takes them along

    @property
    def tokens(self) -> list[int]:
        """All tokens that are known: the prompt, what was generated, and what will be."""
        return self.tokens_from(0)

    def tokens_from(self, first: int) -> list[int]:
        """Return the known tokens from that number on; no others are copied."""
        found: list[int] = []
        for part in (self.prompt, self.generated, self.certain):
            found += part[first:]
            first = max(0, first - len(part))
        return found

    def drafted(self) -> Iterator[Drafted]:
        """Yield the tokens that were drafted, by their sources; a request's prediction even if nothing was."""
        predicted = bool(self.request.params.prediction)
        counts = {} if self.drafts is None else self.drafts.counts
        for source in SOURCES:
            n_drafted, n_accepted = counts.get(source, (0, 0))
            n_certain = self.n_certain if source == PAST else 0
            if n_drafted or n_certain or (predicted and source == PREDICTION):
                yield Drafted(source, n_drafted + n_certain, n_accepted + n_certain)

    def next_known(self, most: int) -> Sequence[int]:
        """Return up to `most` of the tokens that are to be generated again, for an answer that was begun elsewhere."""
        n = len(self.generated)
        return self.known[n : n + most]

    @property
    def n_known(self) -> int:
        return len(self.prompt) + len(self.generated) + len(self.certain)

    @property
    def n_pending(self) -> int:
        """The number of tokens that are known and not computed: the rest of the prompt, or the one sampled last."""
        return self.n_known - self.n_committed

    @property
    def next_media(self) -> MediaRun | None:
        """The picture that the next token to compute is of; None if that token is text."""
        return next((run for run in self.media if run.start <= self.n_committed < run.end), None)

    @property
    def decodes(self) -> bool:
        """True if the last known token alone is to be computed, and is text."""
        return self.n_pending == 1 and self.next_media is None

    @property
    def unencoded(self) -> list[MediaChunk]:
        """The pictures that are to be computed and are not encoded yet."""
        return [run.chunk for run in self.media if run.end > self.n_committed and not run.chunk.encoded]

    @property
    def waits_for_encoding(self) -> bool:
        """True if the next token to compute is of a picture that is not encoded yet."""
        run = self.next_media
        return run is not None and not run.chunk.encoded

    def of_one_kind(self, n_tokens: int) -> int:
        """Return how many of the next `n_tokens` tokens one step can compute: text, or rows of one picture."""
        run = self.next_media
        if run is not None:
            left = run.end - self.n_committed
            return left if run.chunk.non_causal else min(n_tokens, left)
        starts = [run.start for run in self.media if run.start > self.n_committed]
        return min([n_tokens, *(start - self.n_committed for start in starts)])

    @property
    def n_pending_alike(self) -> int:
        """The number of pending tokens, the next ones, that the same adapters compute."""
        return min(self.n_pending, self.adapted.n_until_change(self.n_committed))

    @property
    def scales(self) -> Scales:
        """The adapters that compute the next token."""
        return self.adapted.at(self.n_committed)

    @property
    def n_described(self) -> int:
        """The number of leading tokens whose logprobs are still wanted: all of a leader's prompt, or none."""
        wanted = self.request.params.prompt_logprobs and self.leads and not self.generated
        return len(self.prompt) if wanted else 0

    @property
    def leads(self) -> bool:
        return self.index % self.request.params.n == 0

    @property
    def siblings(self) -> list[Choice]:
        """The other choices of a leader's prompt."""
        return self.request.choices[self.index + 1 : self.index + self.request.params.n]


class Client(Protocol):
    """The client of a request, as far as it can be asked."""

    def has_left(self) -> bool:
        """Return whether the client has closed its connection, without waiting: steps wait for the answer."""


class TraceContext(NamedTuple):
    """The place of a request in its client's trace, by W3C's headers, and the name of the operation."""

    traceparent: str | None
    tracestate: str | None
    path: str
    model: str


class ImpliedParent(str):
    """A parent that an agent's own headers imply, not its user: it is ignored where it does not fit the family."""

    __slots__ = ()


class Names(NamedTuple):
    """The groups that a request belongs to, and its priority; see `Origin`."""

    session: str | None = None
    parent: str | None = None
    supersede: str | None = None
    priority: int = 0


class Origin(TypedDict, total=False):
    """The origin of a request, and the groups that it belongs to."""

    request_id: str | None  # by default one is made
    owner: str  # of the request's id, session, key and cached prefixes; by default `NO_OWNER`
    session: str | None  # the group, with any number of live requests, that a cancel of the session reaches
    parent: str | None  # the session whose child `session` is; a cancel reaches all descendants
    # The supersede key, under which at most one request lives: of two, the one that arrived earlier is cancelled.
    supersede: str | None
    # Among an owner's requests, a higher priority starts first, and takes slots from lower ones. With `IDLE` a request
    # gives way to all others, of any owner.
    priority: int
    # Monotonic seconds, from which deadlines count; the last arrival of a key is its newest request. By default now.
    arrived_at: float | None
    client: Client | None  # asked right before each step: no step begins for a client that has left
    trace: TraceContext | None  # for observers; the engine does not look at it


class Request:
    """A request from its arrival to its one ending. Its parameters, sink and choices are set before it is accepted."""

    def __init__(self, cancellation: Cancellation, **origin: Unpack[Origin]) -> None:
        self.priority = origin.get("priority", 0)
        if not isinstance(self.priority, int):
            raise InvalidRequestError("priority must be an integer", "priority")
        self.id = origin.get("request_id") or f"req-{secrets.token_hex(8)}"
        self.params = NO_PARAMS
        self.owner = origin.get("owner", NO_OWNER)
        # These, and the priority, are written by the registry, under its lock, until the request is accepted.
        self.session = origin.get("session")
        self.parent = origin.get("parent")
        self.supersede = origin.get("supersede")
        self.adapters: Scales = ()  # the LoRA adapters that compute it
        self.cancellation = cancellation
        self.created_at = time.time()
        # Monotonic seconds: when its client asked, which may be well before the request is submitted.
        arrived_at = origin.get("arrived_at")
        self.arrived_at = time.monotonic() if arrived_at is None else arrived_at
        self.superseded_by: str | None = None  # written by the registry, under its lock
        # Written by the event loop, read by the engine thread: an idle request waits for foreground ones of its front.
        self.held_by_front = False
        # Written by the responsible thread only.
        self.choices: list[Choice] = []
        self.status = RequestStatus.PREPARING
        self.paused = False  # without slots until its reader continues, or no foreground request is left if it is idle
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None
        self.ended_at: float | None = None
        self.retry_after: float | None = None  # seconds, for a client whose request waited for too long
        self.sink: Sink = NO_SINK
        self.client = origin.get("client")
        self.trace = origin.get("trace")
        # Resolved once, by the responsible thread, when everything else about the ending is done.
        self.ended: Future[Ending] = Future()
        # The future is running from the start, so that a waiter that is cancelled cannot cancel it.
        self.ended.set_running_or_notify_cancel()

    @property
    def awaits_encoding(self) -> bool:
        """True if pictures of the request may be encoded now, by a thread that computes beside the steps."""
        return any(choice.unencoded for choice in self.choices)

    def _slots(self) -> tuple[int, ...]:
        return tuple(choice.seq for choice in self.choices if choice.seq is not None)

    def drop_media(self) -> None:
        """Drop the pictures of an ended request, by its responsible thread. They may be large, and the request and its
        choices refer to each other, so they live on until the garbage collector comes.
        """
        for choice in self.choices:
            choice.media = ()

    @property
    def last_token_at(self) -> float | None:
        """The time of the answer's last token, of any choice."""
        return max((one.last_token_at for one in self.choices if one.last_token_at is not None), default=None)

    def cancel_error(self) -> RequestCancelled:
        """Return the error that reports the cancel of the request."""
        reason = self.cancellation.reason
        assert reason is not None
        return RequestCancelled(reason, self.usage(), self.cancellation.deadline, self.retry_after)

    @property
    def is_idle(self) -> bool:
        """True if the request computes only while no others wait or compute."""
        return self.priority == IDLE

    @property
    def live(self) -> bool:
        """True if the request has neither ended nor been cancelled."""
        return self.status is not RequestStatus.FINISHED and not self.cancellation.requested

    @property
    def group(self) -> str | None:
        """The session that lists the request. A request that names only a parent is a member of the parent."""
        return self.parent if self.session is None else self.session

    @property
    def n_prompt_tokens(self) -> int:
        return sum(len(choice.prompt) for choice in self.choices[:: self.params.n])

    def usage(self) -> Usage:
        """Tokens processed so far; a prompt shared by n choices counts once."""
        prompt = cached = 0
        for first in range(0, len(self.choices), self.params.n):
            siblings = self.choices[first : first + self.params.n]
            prompt += max(min(choice.n_committed, len(choice.prompt)) for choice in siblings)
            cached += siblings[0].n_cached
        completion = sum(len(choice.generated) for choice in self.choices)
        return Usage(prompt, completion, cached, self._drafted())

    def _drafted(self) -> tuple[Drafted, ...]:
        found: dict[str, Drafted] = {}
        for choice in self.choices:
            for one in choice.drafted():
                old = found.get(one.source, Drafted(one.source, 0, 0))
                found[one.source] = Drafted(one.source, old.n_drafted + one.n_drafted, old.n_accepted + one.n_accepted)
        return tuple(found.values())

    def n_uncomputed(self, n_usual: int) -> int:
        """Return the tokens still to compute: of the prompts, and of answers that have not ended, which are expected to
        reach the limit that the request has set, or else the usual length.
        """
        expected = self.params.max_tokens or n_usual
        left = (min(one.max_tokens, expected) - len(one.generated) for one in self.choices if not one.finish_reason)
        return self.n_prompt_tokens - self.usage().prompt_tokens + sum(max(0, n_left) for n_left in left)

    def summary(self, ending: Ending | None = None) -> RequestSummary:
        """Return the request's present state, or its last one; may be called from any thread."""
        usage, cancelled_at = self.usage(), self.cancellation.requested_at
        return RequestSummary(
            **{name: getattr(self, name) for name in SHOWN},
            n=len(self.choices) or 1,
            prompt_tokens=self.n_prompt_tokens,
            prompt_tokens_done=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            cancel_reason=self.cancellation.reason,
            deadline=self.cancellation.deadline,
            seconds=(self.ended_at or time.monotonic()) - self.arrived_at,
            slots=self._slots() if ending is None else (),
            paused=self.paused and self.status is not RequestStatus.FINISHED,
            ending=ending,
            times=Times(self.arrived_at, self.admitted_at, self.first_token_at, cancelled_at, self.ended_at),
            max_tokens=self.params.max_tokens,
            drafts=usage.drafts,
        )


# The fields of a request that its summary has, too.
SHOWN = ("id", "owner", "status", *Names._fields, "superseded_by", "created_at", "adapters")


class Times(NamedTuple):
    """The times of a request's events, in monotonic seconds; None until the event."""

    arrived: float
    admitted: float | None = None
    first_token: float | None = None
    cancelled: float | None = None
    ended: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSummary:
    """A request as clients see it, while it lives and for a while after.

    `created_at` is in seconds since the epoch, and `seconds` is the request's age, or its whole duration. A `paused`
    request has no slot: its reader takes nothing, or it is idle and others come first.
    `max_tokens` is the requested limit for each choice. In a front, `model` and `replica` say which model it names, and
    which process has it.
    """

    id: str
    owner: str
    status: RequestStatus
    session: str | None
    parent: str | None
    supersede: str | None
    priority: int
    n: int
    prompt_tokens: int
    prompt_tokens_done: int
    cached_tokens: int
    completion_tokens: int
    cancel_reason: CancelReason | None
    superseded_by: str | None
    created_at: float
    seconds: float
    slots: tuple[int, ...]
    ending: Ending | None
    times: Times
    max_tokens: int | None = None
    deadline: Deadline | None = None
    paused: bool = False
    drafts: tuple[Drafted, ...] = ()
    adapters: tuple[tuple[int, float], ...] = ()
    model: str | None = None
    replica: str | None = None
