"""The format of an endpoint's answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyllmcancel.server.errors.shapes import openai_error

if TYPE_CHECKING:
    from pyllmcancel.events import Delta, Usage
    from pyllmcancel.server.errors.responses import ApiError

# A comment, which every reader of server-sent events skips.
PING = b": ping\n\n"


class Dialect(ABC):
    """The format of one endpoint's answers."""

    says_done: ClassVar[bool] = False  # a complete stream ends with OpenAI's [DONE]
    names_events: ClassVar[bool] = False  # the type of an event, which is in its data, is also its name in the stream
    ping: ClassVar[bytes] = PING  # sent after a silence

    def opening(self) -> Iterable[Mapping[str, Any]]:
        """Return the events before the first delta."""
        return ()

    @abstractmethod
    def chunks(self, delta: Delta) -> Iterable[Mapping[str, Any]]:
        """Return the events of one delta."""

    @abstractmethod
    def closing(self, usage: Usage) -> Iterable[Mapping[str, Any]]:
        """Return the events after the last delta of a complete answer."""

    def failure(self, error: ApiError, request_id: str) -> Iterable[Mapping[str, Any]]:
        """Return the last events of an answer that broke off, which must not look complete."""
        yield openai_error(error, request_id)

    async def keep(self) -> None:  # noqa: B027 - most keep nothing
        """Store an answer, if need be. Called when an answer, whole or broken off, has been encoded, before its end is
        sent. ApiError if it cannot be stored as requested: this error is sent instead, in a stream by `failure`.
        """

    @abstractmethod
    def whole(self, deltas: list[Delta], usage: Usage) -> Mapping[str, Any] | Sequence[Mapping[str, Any]] | str:
        """Return a complete answer in one piece: JSON, or a plain text."""
