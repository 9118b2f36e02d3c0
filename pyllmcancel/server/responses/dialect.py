"""The answer of ``POST /v1/responses`` to a client that waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from pyllmcancel.events import Delta, Usage
from pyllmcancel.server.bodies import Incoming
from pyllmcancel.server.chat.answer_parser import Content, Reasoning
from pyllmcancel.server.chat.logprobs import Ledger, Placed, token_logprobs
from pyllmcancel.server.chat.turn import ChatTurn
from pyllmcancel.server.dialect import Dialect
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.responses import answer as wire
from pyllmcancel.server.responses.body import ResponsesBody
from pyllmcancel.server.responses.output import End, Output, broken_off, ended

if TYPE_CHECKING:
    from pyllmcancel._native import Model


Store = Callable[[wire.ResponseAnswer, Sequence[wire.ResponseEvent]], Awaitable[None]]


class ResponsesDialect(Dialect):
    """One response, which is `queued` first if it is in the background."""

    names_events = True

    def __init__(self, output: Output, model: Model, turn: ChatTurn, *, queued: bool = False) -> None:
        shows = turn.params.shows
        self.output = output  # the response so far
        self.store: Store | None = None  # stores the response after its end, with its last events
        self._queued = queued
        self._model = model
        self._parser = turn.new_parser()
        self._ledger = Ledger(lambda token: model.piece(token, special=shows(token)))
        self._logprobs: list[wire.OutputTokenLogprob] = []  # of text that is held back
        self._n_reasoning = 0  # tokens so far; a delta that ends reasoning counts as the answer's
        self._last_delta: Delta | None = None
        self._response: wire.ResponseAnswer | None = None
        self._last: list[wire.ResponseEvent] = []  # the last events of the items, and of the response
        self._end: list[wire.ResponseEvent] = []

    @property
    def response(self) -> wire.ResponseAnswer:
        """The response, after its end."""
        assert self._response is not None
        return self._response

    def opening(self) -> Iterable[wire.ResponseEvent]:
        return self.output.begin(queued=self._queued)

    def chunks(self, delta: Delta) -> Iterable[wire.ResponseEvent]:
        parts, self._last_delta = list(self._parser.feed(delta)), delta
        if parts and isinstance(parts[-1], Reasoning):
            self._n_reasoning += len(delta.tokens)
        self._logprobs += map(self._named, self._ledger.take(delta))
        if not parts:
            return ()
        complete, self._logprobs = self._logprobs, []
        # This API has no place for logprobs of reasoning and calls.
        return self.output.feed(parts, complete if any(isinstance(part, Content) for part in parts) else ())

    def closing(self, usage: Usage) -> Iterable[wire.ResponseEvent]:
        return self._last_events(ended(self._last_delta, wire.response_usage(usage, self._n_reasoning)))

    def failure(self, error: ApiError, request_id: str) -> Iterable[wire.ResponseEvent]:
        self.output.take_back(self._end)  # of an answer that was complete, and could not be stored
        return self._last_events(broken_off(error, self._n_reasoning))

    def whole(self, deltas: list[Delta], usage: Usage) -> wire.ResponseAnswer:
        for delta in deltas:
            list(self.chunks(delta))
        self.closing(usage)
        return self.response

    async def keep(self) -> None:
        if self.store is not None and self._response is not None:
            await self.store(self._response, self._last + self._end)

    def _named(self, placed: Placed) -> wire.OutputTokenLogprob:
        found = token_logprobs(self._model, placed.entry)
        top: list[wire.TopLogprob] = [{**one, "bytes": one["bytes"] or []} for one in found["top_logprobs"]]
        return {**found, "bytes": found["bytes"] or [], "top_logprobs": top}

    def _last_events(self, end: End) -> list[wire.ResponseEvent]:
        self._last += self.output.end_items(end)
        self._end = list(self.output.end(end))
        self._response = self.output.response(end.status, end)
        return self._last + self._end


def head_of(incoming: Incoming[ResponsesBody], turn: ChatTurn, *, stored: bool) -> wire.ResponseHead:
    """Return the head of a response, which describes its request."""
    body, exchange, sampling = incoming.body, incoming.exchange, turn.params.sampling
    text = {} if body.text is None else body.text.model_dump(exclude_unset=True, by_alias=True)
    choice = body.tool_choice or "auto"
    head = {
        "id": f"{wire.RESPONSE_PREFIX}{exchange.request_id}",
        "object": "response",
        "created_at": int(exchange.created_at),
        "model": incoming.state.model_name,
        "background": bool(body.background),
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": body.reasoning and body.reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": stored,
        "temperature": sampling.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium"} | text,
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_unset=True),
        "tools": [tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
    }
    # The other fields are those of the body.
    whole = {name: head[name] if name in head else getattr(body, name) for name in wire.ResponseHead.__annotations__}
    return cast("wire.ResponseHead", whole)
