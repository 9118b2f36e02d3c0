"""From a prompt's tokens to a request of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyllmcancel.cancellation import CancelReason
from pyllmcancel.requests.token_stream import AsyncStream, Bound, LoopSink
from pyllmcancel.server.answer_events import AnswerEvents, EventStreamResponse, WholeResponse, whole_answer
from pyllmcancel.server.bodies import FieldNames
from pyllmcancel.server.limits import FEW_UNREAD, MAX_UNREAD
from pyllmcancel.server.preparing import working
from pyllmcancel.server.streams.kept import KeptAnswer
from pyllmcancel.server.streams.reading import KeptResponse

if TYPE_CHECKING:
    from pyllmcancel.requests.params import GenerationParams
    from pyllmcancel.server.answer_events import EngineResponse
    from pyllmcancel.server.behind import WorkerLink
    from pyllmcancel.server.bodies import Incoming
    from pyllmcancel.server.dialect import Dialect
    from pyllmcancel.server.wire.generation import LlamaFields

# For longer prompts the samplers, which read them, are made in a thread.
INLINE_PROMPT = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    """A request as it was read: the work for the engine. Neither the answer nor its dialect keeps the plan: its body
    may be long.
    """

    incoming: Incoming[LlamaFields]
    prompts: Sequence[Sequence[int]]
    params: GenerationParams
    names: FieldNames  # the body's names of fields, by the engine's
    unenforced: Sequence[str]  # the paths, in the body, of the parts of schemas that are not enforced


async def generate(plan: Plan, dialect: Dialect) -> EngineResponse | KeptResponse:
    """Submit a request, and answer in the requested form. The engine's errors pass through to the handlers."""
    incoming, keeping, streams = plan.incoming, plan.incoming.keeping, plan.incoming.state.streams
    if keeping is not None:
        streams.make_room(incoming.request.owner, keeping.name)
    stream, link = await submit(plan), incoming.exchange.link
    if not incoming.body.stream:
        return WholeResponse(stream, partial(whole_answer, dialect, link))
    own = incoming.body.sse_ping_interval
    interval = incoming.state.config.sse_ping_interval if own is None else max(0, own)
    ahead = partial(incoming.state.engine.ahead_of, incoming.request)
    events = AnswerEvents(stream, dialect, interval, link, ahead)
    if keeping is None:
        return EventStreamResponse(stream, events)
    kept = KeptAnswer(keeping, stream, events)
    streams.begin(kept)
    return KeptResponse(kept)


async def submit(plan: Plan) -> AsyncStream:
    """Submit a request, and return the stream of its events. The engine's errors pass through to the handlers."""
    incoming, prompts, params = plan.incoming, plan.prompts, plan.params
    state, request, engine = incoming.state, incoming.request, incoming.state.engine
    link: WorkerLink | None = incoming.exchange.link
    if link is not None and link.delivered is not None and link.delivered.promise is not None:
        params = replace(params, sampling=replace(params.sampling, seed=link.delivered.promise.seed))
    # An answer in one piece is read by this server, so it needs no bound.
    bound = Bound(MAX_UNREAD, FEW_UNREAD, engine.registry.wake) if incoming.body.stream else None
    sink = LoopSink(asyncio.get_running_loop(), bound)
    with plan.names.in_errors():
        if is_laborious(prompts, params):
            fill = partial(engine.fill, request, prompts, params, sink)
            await incoming.prepare(lambda _pause: fill(), state.fillers)
        else:
            with working(engine, request):
                engine.fill(request, prompts, params, sink)
        if link is not None:
            link.go_on(request, await state.digest())
        (link or engine).accept(request)
    # Other servers, and applications that mount this one, cancel the task of a client that has left.
    return AsyncStream(request, engine, sink, CancelReason.DISCONNECT)


def is_laborious(prompts: Sequence[Sequence[int]], params: GenerationParams) -> bool:
    """Return whether it takes long to make the samplers, which read the prompt, and some of them the vocabulary."""
    reads_much = bool(params.sampling.grammar) or params.sampling.dry_multiplier > 0.0
    n_tokens = sum(map(len, prompts)) + len(prompts) * len(params.sampling.logit_bias)
    return reads_much or params.n * n_tokens > INLINE_PROMPT
