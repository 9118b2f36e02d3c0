"""Events, metrics and properties, as the processes of all models tell them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from pyllmcancel.front.everywhere import answer_of, note_unreached, unreached
from pyllmcancel.front.feed import MODELS, LlamaModelsFeed, ModelsFeed
from pyllmcancel.front.forwarding import Message, kept
from pyllmcancel.front.routes_models import props as props_of_all
from pyllmcancel.front.routes_models import router_of
from pyllmcancel.server.limits import MAX_NAME
from pyllmcancel.server.live.events import TYPES
from pyllmcancel.server.live.response import unknown_replica
from pyllmcancel.server.live.routes import Types, named_types
from pyllmcancel.server.requests.visible import See, check_may_see_all
from pyllmcancel.server.routes_health import MetricsFormat

if TYPE_CHECKING:
    from pyllmcancel.front.worker import Worker

router = APIRouter(include_in_schema=False)
Name = Annotated[str | None, Query(max_length=MAX_NAME)]


@router.get("/v1/events")
async def follow_events(request: Request, see: See, types: Types = None, replica: Name = None) -> Response:
    if replica is not None and all(one.replica != replica for one in router_of(request).keeper.ready()):
        raise unknown_replica()
    return ModelsFeed(request, see, named_types(types, (*TYPES, MODELS)), replica)


@router.get("/models/sse")
async def follow_models(request: Request) -> Response:
    return LlamaModelsFeed(request)


@router.get("/props")
async def props(request: Request) -> Any:
    found = router_of(request)
    several = len(found.keeper.catalog.specs) > 1
    if "model" not in request.query_params and several:
        return props_of_all(found.keeper, found)
    spec = await found.named(request.query_params.get("model"))
    if not several and found.keeper.serving(spec) is None:
        return props_of_all(found.keeper, found) | {"is_sleeping": found.keeper.model(spec.name).asleep}
    answer = await answer_of(found.serving(spec), Message.of(request.scope, b""))
    if answer is None:
        raise unreached()
    head, content = answer
    if not several and head.status == 200:
        return json.loads(content) | {"is_sleeping": False}
    response = Response(content, head.status)
    response.raw_headers = kept(head.headers)
    return response


@router.get("/metrics")
async def metrics(request: Request, format: MetricsFormat = None) -> Response:  # noqa: A002 - each process reads it
    """Return the metrics of all processes, each sample with the label `model`, and `replica` if there are several."""
    check_may_see_all(request)
    keeper = router_of(request).keeper
    ready, message = keeper.ready(), Message.of(request.scope, b"")
    answers = await asyncio.gather(*(answer_of(one, message) for one in ready))
    found = list(zip(ready, answers, strict=True))
    note_unreached(request.scope, [one for one, answer in found if answer is None])
    texts = {
        labels_of(one, several=len(keeper.workers(one.model)) > 1): answer[1].decode()
        for one, answer in found
        if answer is not None and answer[0].status == 200
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
