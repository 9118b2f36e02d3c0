"""`/v1/models` over all models; loads and unloads, as llama-server's router has them; what all processes tell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, generate_latest

from pyllmcancel.front.everywhere import in_time
from pyllmcancel.front.forwarding import ForwardedRequest
from pyllmcancel.front.places import COMES
from pyllmcancel.front.preferences import fields_in
from pyllmcancel.front.replica import State
from pyllmcancel.front.spec import replica_of
from pyllmcancel.front.upstream import whole_of
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.errors.shapes import ANTHROPIC, shape_of
from pyllmcancel.server.requests.visible import check_may_see_all, may_see_all
from pyllmcancel.server.routes_health import MetricsFormat
from pyllmcancel.server.state import state_of
from pyllmcancel.server.streams.kept_answers import StreamGauges

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyllmcancel.front.keeper import Keeper
    from pyllmcancel.front.replica import Replica
    from pyllmcancel.front.router import Router
    from pyllmcancel.front.spec import Spec
    from pyllmcancel.front.upstream import Head
    from pyllmcancel.front.worker import Worker

router = APIRouter()

Entry = dict[str, Any]
"""A part of an answer."""


def router_of(request: Request) -> Router:
    found: Router = request.app.state.router
    return found


@router.get("/v1/models")
@router.get("/models")
async def list_models(request: Request, reload: str = "") -> Any:
    keeper = router_of(request).keeper
    if reload not in ("", "0", "false"):
        check_may_see_all(request)
        await keeper.reread(removes=True)
    entries = [entry_of(keeper, spec, all_seen=may_see_all(request)) for spec in keeper.catalog.specs.values()]
    if shape_of(request.scope) is ANTHROPIC:
        return anthropic_page(entries)
    return {"object": "list", "data": entries}


@router.get("/v1/models/{model:path}")
async def get_model(request: Request, model: str) -> Any:
    found = router_of(request)
    entry = entry_of(found.keeper, await found.named(model), all_seen=may_see_all(request))
    return anthropic_entry(entry) if shape_of(request.scope) is ANTHROPIC else entry


@router.post("/models/load")
async def load_model(request: Request) -> Any:
    """The answer comes at once; `/v1/models` says how far the load is."""
    spec = await asked_for(request)
    keeper = router_of(request).keeper
    if all(one.state is State.LOADED for one in keeper.local(spec)):
        raise ApiError(400, f"the model {spec.name} is already loaded", param="model", code="already_loaded")
    keeper.load(spec)
    return {"success": True}


@router.post("/models/unload")
async def unload_model(request: Request) -> Any:
    """Requests that run have the time of `--drain`; those that wait get an error. A load is broken off."""
    spec = await asked_for(request)
    keeper = router_of(request).keeper
    if value_of(shown_of(keeper, spec)) == "unloaded":
        raise ApiError(400, f"the model {spec.name} is not loaded", param="model", code="model_not_loaded")
    keeper.unload(spec)
    return {"success": True}


@router.post("/models/restart")
async def restart_model(request: Request) -> Any:
    """One process after the other gets no new requests, and restarts when it has none. The answer comes at once."""
    spec = await asked_for(request)
    router_of(request).serving(spec)
    router_of(request).keeper.restart(spec)
    return {"success": True}


async def asked_for(request: Request) -> Spec:
    """Return the model that the body names: only whoever may see all requests may end them."""
    check_may_see_all(request)
    name = fields_in(await request.body()).get("model")
    if not isinstance(name, str) or not name:
        raise ApiError(400, "model must be the name of a model", param="model", code="invalid_request")
    spec = await router_of(request).named(name)
    if not spec.replicas:
        message = f"the workers of {spec.name} are elsewhere, and neither started nor ended here"
        raise ApiError(400, message, param="model", code="not_here")
    return spec


def entry_of(keeper: Keeper, spec: Spec, *, all_seen: bool) -> Entry:
    """Return the entry of a model; what other owners do with it is there if all requests may be seen."""
    workers, shown = keeper.workers(spec.name), shown_of(keeper, spec)
    entry: Entry = {
        "id": spec.name,
        "object": "model",
        "created": keeper.created,
        "owned_by": "pyllmcancel",
        "aliases": list(spec.aliases),
        "default": spec is keeper.catalog.default,
        "pinned": spec.pinned,
        "status": status_of(keeper, shown, all_seen=all_seen),
        "size": sum(one.need for one in workers if one.takes_room) or shown.need,
        "load_seconds": round(shown.load_seconds, 3) if shown.load_seconds else None,
    }
    if [one.name for one in workers] != [spec.name]:
        entry["replicas"] = [replica_entry(keeper, one, all_seen=all_seen) for one in workers]
    if all_seen:
        used_at = max(one.used_at for one in workers)
        entry["waiting"] = sum(len(one.waiting) for one in workers)
        entry["running"] = sum(len(one.running) for one in workers)
        entry["used_seconds_ago"] = None if used_at < 0 else round(time.monotonic() - used_at, 3)
    return entry


def replica_entry(keeper: Keeper, worker: Replica, *, all_seen: bool) -> Entry:
    entry: Entry = {"name": replica_of(worker.name), "status": status_of(keeper, worker, all_seen=all_seen)}
    if all_seen:
        entry |= {"waiting": len(worker.waiting), "running": len(worker.running)}
    return entry


def shown_of(keeper: Keeper, spec: Spec) -> Replica:
    """Return the process whose state is that of the model: one that serves, or else the one that is next to serve."""
    return min(keeper.workers(spec.name), key=lambda one: (COMES.index(one.state), not one.wanted, not one.asleep))


def value_of(model: Replica) -> str:
    """Return llama-server's word for the state: its clients wait for it."""
    if model.state in (State.LOADED, State.LOADING):
        return str(model.state.value)
    return "loading" if model.wanted else "sleeping" if model.asleep else "unloaded"


def status_of(keeper: Keeper, model: Replica, *, all_seen: bool = True) -> Entry:
    process = keeper.processes.get(model.name) if model.state is State.LOADING else None
    status = Entry(value=value_of(model))
    if process is not None:
        status |= {"stage": process.stage, "progress": process.progress}
    elif status["value"] == "loading":
        status |= {"stage": "waiting", "progress": None}
        if all_seen and (reason := reason_to_wait(model, keeper.roster.replicas.values(), time.monotonic())):
            status["reason"] = reason
    if model.why and model.state in (State.FAILED, State.UNLOADED):
        status["error"] = model.why
        if all_seen:
            status["lines"] = model.lines
    if model.state is State.FAILED:
        status["failed"] = True
    return status


def reason_to_wait(model: Replica, models: Collection[Replica], now: float) -> str:
    """Return why a model that is wanted does not load yet; empty if it is about to."""
    if model.retry_at > now:
        return "its process ended, and will be started again"
    for one in models:
        if one.state in (State.LOADING, State.ENDING):
            return f"{one.of} is being {'loaded' if one.state is State.LOADING else 'unloaded'}"
        if one.state is State.UNLOADED and one.wanted and one.since < model.since:
            return f"{one.of} was asked for earlier"
    held = [one for one in models if one.state is State.LOADED and not one.pinned]
    if busy := list(dict.fromkeys(one.of for one in held if one.running)):
        return f"{', '.join(busy)} {'has' if len(busy) == 1 else 'have'} requests"
    staying = dict.fromkeys(one.of for one in held if one.stays_until > now)
    return f"{', '.join(staying)} must stay for as long as the load took" if staying else ""


def anthropic_entry(entry: Entry) -> Entry:
    return {"type": "model", "id": entry["id"], "display_name": entry["id"], "created_at": "1970-01-01T00:00:00Z"}


def anthropic_page(entries: list[Entry]) -> Entry:
    ids = [entry["id"] for entry in entries]
    data = [anthropic_entry(entry) for entry in entries]
    return {"data": data, "has_more": False, "first_id": next(iter(ids), None), "last_id": next(iter(ids[::-1]), None)}


async def props(request: Request) -> Any:
    """Return what answers: the front itself, or the router, which asks the model."""
    found = router_of(request)
    own = await found.own_props(request.query_params.get("model"))
    return found if own is None else JSONResponse(own)


router.add_route("/props", props, methods=["GET"])


@router.get("/metrics")
async def metrics(request: Request, format: MetricsFormat = None) -> Response:  # noqa: A002 - each process reads it
    """Return the metrics of all processes, each sample with the label `model`, and `replica` if there are several; and
    those of streams, which are kept here.
    """
    check_may_see_all(request)
    keeper, message = router_of(request).keeper, ForwardedRequest.of(request.scope, b"")

    async def answer_of(worker: Worker) -> tuple[Worker, Head, bytes]:
        return worker, *await whole_of(await message.begin(worker.address))

    found, texts = await in_time(keeper.ready(), request.scope, answer_of), dict[str, str]()
    for worker, _, content in (one for one in found if one[1].status == 200):
        replica = f',replica="{worker.replica}"' if len(keeper.workers(worker.model)) > 1 else ""
        texts[f'model="{escaped(worker.model)}"{replica}'] = content.decode()
    if state_of(request).config.metrics:
        streams = CollectorRegistry()
        streams.register(StreamGauges(state_of(request).streams))
        texts[""] = generate_latest(streams).decode()
    return Response(labelled(texts), media_type="text/plain; version=0.0.4; charset=utf-8")


def labelled(texts: dict[str, str]) -> str:
    """Merge texts in Prometheus' format: the samples of a name stay together, each with the label of its text."""
    families: dict[str, list[str]] = {}
    for label, text in texts.items():
        known, name = set(families), ""
        for line in filter(None, text.splitlines()):
            if line.startswith("#"):
                name = line.split(" ", 3)[2]
                if name in known:
                    continue
            else:
                begin, brace, rest = line.partition("{" if "{" in line else " ")
                line = f"{begin}{{{label}{',' if brace == '{' else '} '}{rest}"  # noqa: PLW2901
            families.setdefault(name, []).append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
