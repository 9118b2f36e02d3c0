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
    """A server, and the form of requests to it.

    Attributes
    ----------
    api
        ``completions`` or ``chat``.
    supersede_headers
        The headers that carry the supersede key. Older versions of this server used ``X-Session-Id`` for this;
        llama-server uses ``X-Conversation-Id``.
    ignore_eos
        Ask for answers of full length. Servers that do not know the field ignore or refuse it.
    extra
        Fields to add to every body.
    timeout
        The time limit of one exchange in seconds, after which it is an error.
    """

    url: str
    model: str = "any"
    api: str = "completions"
    stream: bool = True
    ignore_eos: bool = True
    supersede_headers: tuple[str, ...] = ("X-Supersede", "X-Session-Id")
    api_key: str | None = None
    timeout: float = 600.0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The description of one request to make.

    Attributes
    ----------
    prompt
        The prompt as text, or for completions as tokens.
    cut_after
        Seconds from "fully sent" until the client hangs up, unless the answer is complete by then; None: never.
    supersede
        The supersede key; None: no key.
    fields
        Fields to add to the body, or to set in place of the target's.
    """

    prompt: str | list[int]
    max_tokens: int
    request_id: str
    supersede: str | None = None
    cut_after: float | None = None
    stream: bool | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Exchange:
    """One request and its outcome. All times are in seconds on the monotonic clock; None: the event did not happen.

    Attributes
    ----------
    began_at
        The time of the start, before connecting.
    connected_at
        The time of the connection.
    sent_at
        The time when the socket had taken the last byte.
    token_at
        The time of each event with text.
    ended_at
        The time when the last byte of the answer had come, the client hung up, or the request failed.
    error
        The name under which a failure, or a superseded request, is counted: an `ErrorKind`, or ``http_`` and the
        status.
    text, tokens
        The complete answer; tokens only from servers that send them.
    timings
        The fields that llama-server and this server add to answers, the counts of drafted tokens among them.
    """

    ask: Ask
    began_at: float
    connected_at: float | None = None
    sent_at: float | None = None
    first_byte_at: float | None = None
    token_at: list[float] = field(default_factory=list)
    ended_at: float | None = None
    outcome: Outcome | None = None
    error: str | None = None
    detail: str = ""
    status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    text_sha256: str | None = None
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    timings: dict[str, Any] = field(default_factory=dict)

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
