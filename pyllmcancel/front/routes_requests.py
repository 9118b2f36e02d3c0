"""Events, metrics and properties, as the processes of all models tell them."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from pyllmcancel.front.everywhere import note_unreached, unreached
from pyllmcancel.front.feed import MODELS, ModelsFeed
from pyllmcancel.front.forwarding import Message, kept
from pyllmcancel.front.llama_feed import LlamaModelsFeed
from pyllmcancel.front.routes_models import props as props_of_all
from pyllmcancel.front.routes_models import router_of
from pyllmcancel.front.upstream import DEADLINE_SECONDS, Broken, ask
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import owner_of
from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.live.events import TYPES
from pyllmcancel.server.live.response import unknown_replica
from pyllmcancel.server.live.routes import Types, named_types
from pyllmcancel.server.requests.visible import See, check_may_see_all, may_see_all
from pyllmcancel.server.routes_health import MetricsFormat
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from pyllmcancel.front.upstream import Address
    from pyllmcancel.front.worker import Worker

router = APIRouter(include_in_schema=False)
Name = Annotated[str | None, Query(max_length=MAX_NAME)]


@router.get("/v1/events")
async def follow_events(request: Request, see: See, types: Types = None, replica: Name = None) -> Response:
    state, scope, found = state_of(request), request.scope, router_of(request)
    if replica is not None and all(one.replica != replica for one in found.keeper.ready()):
        raise unknown_replica()
    return ModelsFeed(
        found,
        Message.of(scope, b""),
        types=named_types(types, (*TYPES, MODELS)),
        replica=replica,
        seats=request.app.state.seats,
        owner=owner_of(scope),
        seen=see.owner,
        all_seen=may_see_all(request),
        ping_interval=state.config.sse_ping_interval,
    )


@router.get("/models/sse")
async def follow_models(request: Request) -> Response:
    return LlamaModelsFeed(
        router_of(request).keeper,
        seats=request.app.state.seats,
        owner=owner_of(request.scope),
        ping_interval=state_of(request).config.sse_ping_interval,
    )


@router.get("/props")
async def props(request: Request) -> Any:
    found = router_of(request)
    several = len(found.keeper.catalog.specs) > 1
    if "model" not in request.query_params and several:
        return props_of_all(found.keeper, found)
    spec = await found.named(request.query_params.get("model"))
    process = found.keeper.serving(spec)
    if process is not None:
        with suppress(Broken, OSError, ValueError):  # it is about to end
            status, told, response = await answer_of(process.address, request)
            return response if several or status != 200 else told | {"is_sleeping": False}
    if not several:
        return props_of_all(found.keeper, found) | {"is_sleeping": found.keeper.model(spec.name).asleep}
    raise ApiError(400, f"the model {spec.name} is not loaded", param="model", code="model_not_loaded")


@router.get("/metrics")
async def metrics(request: Request, format: MetricsFormat = None) -> Response:  # noqa: A002 - each process reads it
    """Return the metrics of all processes, each sample with the label `model`, and `replica` if there are several."""
    check_may_see_all(request)
    keeper = router_of(request).keeper
    ready = keeper.ready()
    told = await asyncio.gather(*(answer_of(one.address, request) for one in ready), return_exceptions=True)
    note_unreached(
        request.scope, [one for one, answer in zip(ready, told, strict=True) if isinstance(answer, ApiError)]
    )
    texts = {
        labels_of(one, several=len(keeper.workers(one.model)) > 1): bytes(answer[2].body).decode()
        for one, answer in zip(ready, told, strict=True)
        if not isinstance(answer, BaseException) and answer[0] == 200
    }
    return Response(labelled(texts), media_type="text/plain; version=0.0.4; charset=utf-8")


def labels_of(process: Worker, *, several: bool) -> str:
    return f'model="{escaped(process.model)}"' + (f',replica="{process.replica}"' if several else "")


def labelled(texts: dict[str, str]) -> str:
    """Merge texts in Prometheus' format: the samples of a name stay together, each with the label of its text."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for label, text in texts.items():
        name = ""
        for line in text.splitlines():
            if line.startswith("#"):
                name = line.split(" ", 3)[2]
                if not samples.get(name) and line not in heads.setdefault(name, []):
                    heads[name].append(line)
            elif line:
                begin, brace, rest = line.partition("{")
                if brace:
                    told = f"{begin}{{{label},{rest}"
                else:
                    begin, _, rest = line.partition(" ")
                    told = f"{begin}{{{label}}} {rest}"
                samples.setdefault(name, []).append(told)
    lines = [line for name, some in samples.items() for line in (*heads.get(name, ()), *some)]
    return "".join(f"{line}\n" for line in lines)


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


async def answer_of(address: Address, request: Request) -> tuple[int, Any, Response]:
    """Return the status, the content and the whole of a process's answer to this request; ApiError if it is late."""
    message = Message.of(request.scope, b"")
    try:
        head, content = await ask(
            address, message.target, message.headers, method=message.method, seconds=DEADLINE_SECONDS
        )
    except (TimeoutError, OSError):
        raise unreached() from None
    response = Response(content, head.status)
    response.raw_headers = kept(head.headers)
    is_json = head.get(b"content-type").startswith(b"application/json")
    return head.status, json.loads(content) if is_json else None, response
