"""The description of a request to make, and the record of its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any


class Outcome(StrEnum):
    """How a request ended: answered, cancelled (hung up on by us, or superseded), or failed."""

    OK = "ok"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and how it is to be asked.

    Attributes
    ----------
    api
        ``completions`` or ``chat``.
    supersede_headers
        The headers in which a key travels under which a newer request supersedes an older one. Older
        versions of this server used ``X-Session-Id`` for this; llama-server takes ``X-Conversation-Id``.
    ignore_eos
        Ask for answers of full length. Servers that do not know the field ignore or refuse it.
    keep_alive
        Use a connection again after a complete answer.
    extra
        Further fields of every body.
    timeout
        Seconds for one exchange, after which it is an error.
    """

    url: str
    model: str = "any"
    api: str = "completions"
    stream: bool = True
    ignore_eos: bool = True
    keep_alive: bool = True
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
        Text; for completions also tokens.
    cut_after
        Seconds from "fully sent" until the client hangs up, unless the answer is complete by then; None: never.
    supersede
        Key under which it supersedes, and is superseded; None: it has none.
    label
        What the request is in its scenario.
    lane
        The client that makes it, where a scenario has several.
    """

    prompt: str | list[int]
    max_tokens: int
    request_id: str
    supersede: str | None = None
    cut_after: float | None = None
    label: str = ""
    lane: int = 0
    stream: bool | None = None


@dataclass(slots=True)
class Exchange:
    """One request, and what became of it. All times in seconds on the monotonic clock; None: it did not happen.

    Attributes
    ----------
    began_at
        When it was started, before any connecting.
    connected_at
        None on a connection that was used before.
    sent_at
        When the socket had taken the last byte.
    token_at
        When each event with text came.
    ended_at
        When the last byte of the answer had come, the client hung up, or it failed.
    error
        What it is counted as if it failed, or was superseded: an `ErrorKind`, or ``http_`` and the status.
    """

    ask: Ask
    began_at: float
    connected_at: float | None = None
    reused: bool = False
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

    @property
    def hung_up(self) -> bool:
        """True if it was the client that ended it."""
        return self.outcome is Outcome.CANCELLED and self.error is None

    @property
    def ttft(self) -> float | None:
        """Seconds from "fully sent" to the first token."""
        return self.token_at[0] - self.sent_at if self.token_at and self.sent_at is not None else None

    @property
    def latency(self) -> float | None:
        """Seconds from "fully sent" to the end."""
        return self.ended_at - self.sent_at if self.ended_at is not None and self.sent_at is not None else None

    @property
    def itl(self) -> list[float]:
        """Seconds between one token and the next."""
        return [later - earlier for earlier, later in pairwise(self.token_at)]

    @property
    def n_tokens(self) -> int:
        """Tokens generated, by the server's own account if it gave one, else counted by events."""
        return self.completion_tokens if self.completion_tokens is not None else len(self.token_at)
