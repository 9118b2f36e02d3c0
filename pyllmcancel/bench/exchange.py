"""The description of a request to make, and the record of its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any


class Outcome(StrEnum):
    """The end of a request: answered, cancelled (hung up on by us, or superseded), or failed."""

    OK = "ok"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and the form of requests to it."""

    url: str
    model: str = "any"
    api: str = "completions"  # or ``chat``
    stream: bool = True
    ignore_eos: bool = True  # ask for answers of full length; servers that do not know the field ignore or refuse it
    # Those with the supersede key: older versions of this server used the second; llama-server: ``X-Conversation-Id``.
    supersede_headers: tuple[str, ...] = ("X-Supersede", "X-Session-Id")
    api_key: str | None = None
    timeout: float = 600.0  # seconds after which an exchange is an error
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields to add to every body


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The description of one request to make."""

    prompt: str | list[int]  # text, or for completions tokens
    max_tokens: int
    request_id: str
    supersede: str | None = None  # the supersede key
    cut_after: float | None = None  # seconds from "fully sent" to the hang-up, if there is no whole answer; None: never
    stream: bool | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # to add to the body, or to set in place of the target's


@dataclass(slots=True)
class Exchange:
    """One request and its outcome. All times are in seconds on the monotonic clock; None: the event did not happen."""

    ask: Ask
    began_at: float  # before connecting
    connected_at: float | None = None
    sent_at: float | None = None  # the socket had taken the last byte
    first_byte_at: float | None = None
    token_at: list[float] = field(default_factory=list)  # of each event with text
    ended_at: float | None = None  # the answer's last byte had come, the client hung up, or the request failed
    outcome: Outcome | None = None
    error: str | None = None  # of a failure, or superseded: an `ErrorKind`, or ``http_`` and the status
    detail: str = ""
    status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    text_sha256: str | None = None
    text: str = ""  # the complete answer
    tokens: list[int] = field(default_factory=list)  # from servers that send them
    timings: dict[str, Any] = field(default_factory=dict)  # those that servers add, with the counts of drafted tokens

    @property
    def hung_up(self) -> bool:
        """True if the client ended the exchange."""
        return self.outcome is Outcome.CANCELLED and self.error is None

    @property
    def ttft(self) -> float | None:
        """The seconds from "fully sent" to the first token."""
        return self.token_at[0] - self.sent_at if self.token_at and self.sent_at is not None else None

    @property
    def latency(self) -> float | None:
        """The seconds from "fully sent" to the end."""
        return self.ended_at - self.sent_at if self.ended_at is not None and self.sent_at is not None else None

    @property
    def itl(self) -> list[float]:
        """The seconds between one token and the next."""
        return [later - earlier for earlier, later in pairwise(self.token_at)]

    @property
    def n_tokens(self) -> int:
        """The number of generated tokens, as the server reports it, or else as counted by events."""
        return self.completion_tokens if self.completion_tokens is not None else len(self.token_at)
