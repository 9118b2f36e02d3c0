"""``/v1/requests`` and ``/v1/sessions`` over all models: what the processes answer, and the requests that wait here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse, Response

from pyllmcancel.pausing import no_pause
from pyllmcancel.router.feed import ModelsFeed
from pyllmcancel.router.forwarding import OF_ANSWER, Message
from pyllmcancel.router.llama_feed import LlamaModelsFeed
from pyllmcancel.router.process import ModelProcess
from pyllmcancel.router.routed import mark_of
from pyllmcancel.router.router import note_unreached, unreached
from pyllmcancel.router.routes_models import props as props_of_all
from pyllmcancel.router.routes_models import router_of
from pyllmcancel.router.spec import replica_of
from pyllmcancel.router.upstream import Broken, Exchange
from pyllmcancel.server.bodies import json_value, validated
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.fleet.merging import merged_requests, merged_sessions
from pyllmcancel.server.fleet.messages import ListRequests, ListSessions, Requests, Sessions
from pyllmcancel.server.fleet.transport import DEADLINE_SECONDS
from pyllmcancel.server.http.api_keys import is_admin, owner_of
from pyllmcancel.server.http.request_context import SANE_ID, bad_id
from pyllmcancel.server.limits import INLINE_BODY, MAX_NAME
from pyllmcancel.server.origin import checked
from pyllmcancel.server.requests.answers import OutsideStatus, SessionCancelAnswer
from pyllmcancel.server.requests.body import CancelBody
from pyllmcancel.server.requests.routes import Hold, PathName, Wait, not_found, unknown_id
from pyllmcancel.server.requests.sessions import unknown_session
from pyllmcancel.server.requests.visible import admin_only, check_may_see_all, may_see_all
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyllmcancel.router.routed import RoutedRequest
    from pyllmcancel.router.spec import Spec
    from pyllmcancel.server.fleet.messages import Message as FleetMessage
    from pyllmcancel.server.fleet.messages import Reply

R = TypeVar("R", bound="Reply")
Name = Annotated[str | None, Query(max_length=MAX_NAME)]
router = APIRouter(include_in_schema=False)


async def owner_seen(request: Request, owner: Name = None) -> str | None:
    """Return the owner whose requests may be seen; None: everybody's. An administrator may name one."""
    return owner if is_admin(request.scope) else owner_of(request.scope)


async def owner_meant(request: Request, owner: Name = None) -> str | None:
    """Return the owner whose requests are to be cancelled; None: everybody's. ApiError 403 if it is another one."""
    if is_admin(request.scope):
        return owner
    own = owner_of(request.scope)
    if owner not in (None, own):
        raise admin_only("owner")
    return own


Seen = Annotated[str | None, Depends(owner_seen)]
Meant = Annotated[str | None, Depends(owner_meant)]


async def asked(request: Request, message: FleetMessage, reply: type[R]) -> dict[str, R]:
    """Return the replies of all processes, by the names of their replicas; those that are missing are noted for the
    answer.
    """
    replies = await router_of(request).front.ask_all(message, reply)
    found = {replica_of(process.name): told for process, told in replies.items()}
    note_unreached(request.scope, [process for process, told in replies.items() if told is None])
    return {name: told for name, told in found.items() if told is not None}


def listed(request: Request, data: list[Any]) -> JSONResponse:
    """Return a list that names the processes whose entries it lacks, if there are any."""
    unreached = [{"replica": name, "why": why} for name, why in request.scope["state"]["unreached"].items()]
    return JSONResponse({"object": "list", "data": data} | ({"unreached": unreached} if unreached else {}))


async def entries(request: Request, message: ListRequests, here: list[RoutedRequest]) -> list[Any]:
    """Return the entries of requests: first those of requests here that no process knows."""
    # Only now: a request that becomes known meanwhile is in one of the lists, or in both.
    replies = await asked(request, message, Requests)
    told = merged_requests({name: reply.data for name, reply in replies.items()})
    known, live = set(map(mark_of, told)), router_of(request).requests
    return [*(one.entry() for one in here if one in live and one.mark not in known), *told]


@router.get("/v1/requests")
async def list_requests(request: Request, seen: Seen, status: OutsideStatus | None = None, session: Name = None) -> Any:
    of_session = (one for one in router_of(request).requests.of(seen) if session in (None, one.wishes.session))
    here = [one for one in of_session if not one.is_known]
    found = await entries(request, ListRequests(owner=seen, session=session), here)
    return listed(request, [one for one in found if status in (None, one["status"])])


@router.get("/v1/requests/{request_id:path}")
async def get_request(request: Request, seen: Seen, request_id: PathName) -> Any:
    cancels = router_of(request).cancels
    owner = (await cancels.owners_of([request_id]))[request_id] if seen is None else seen
    here = [one for one in cancels.find(owner, request_id) if not one.is_known]
    if any(one.waits for one in here):
        return here[0].entry()
    for entry in await entries(request, ListRequests(owner=owner, ids=[request_id]), here):
        return entry
    raise unknown_id()


@router.post("/v1/requests/cancel")
async def cancel_requests(request: Request, meant: Meant, wait: Wait = True, hold: Hold = 0.0) -> Any:
    text, config = await request.body(), state_of(request).config
    parse = partial(json_value, max_values=config.limits.max_body_values)
    check = partial(validated, text, CancelBody, parse, config.unknown_fields, no_pause)
    wanted, _ = check() if len(text) <= INLINE_BODY else await asyncio.to_thread(check)
    assert isinstance(wanted, CancelBody)
    owner = meant if wanted.owner is None else await owner_meant(request, wanted.owner)
    if wanted.request_ids is None:
        found = await router_of(request).cancels.by_filter(wanted.session, wanted.status, owner, wait=wait)
    else:
        found = await cancelled_by_id(request, dict.fromkeys(wanted.request_ids), owner, wait=wait, hold=hold)
    return {"object": "list", "data": list(found.values())}


@router.post("/v1/requests/{request_id:path}/cancel")
@router.delete("/v1/requests/{request_id:path}")
async def cancel_request(
    request: Request, owner: Meant, request_id: PathName, wait: Wait = True, hold: Hold = 0.0
) -> Any:
    found = await cancelled_by_id(request, [request_id], owner, wait=wait, hold=hold)
    answer = found[request_id]
    match answer["outcome"]:
        case "unknown":
            raise unknown_id()
        case "held":
            return JSONResponse(answer, 202)
        case _:
            return answer


async def cancelled_by_id(
    request: Request, ids: Collection[str], owner: str | None, *, wait: bool, hold: float
) -> dict[str, Any]:
    """Cancel requests; return the answer about each. With `hold`, an id that is unknown is held here, where all
    requests arrive.
    """
    found = router_of(request)
    if hold > 0.0 and not all(map(SANE_ID.fullmatch, ids)):
        raise bad_id("request_id")  # no request of this id can come
    if owner is None:
        owners = await found.cancels.owners_of(ids, hold)
    else:
        owners = dict.fromkeys(ids, owner)
    answers: dict[str, Any] = {}
    silent = set[ModelProcess]()
    for one in set(owners.values()):
        mine = [request_id for request_id in ids if owners[request_id] == one]
        answers |= await found.cancels.by_id(mine, one, silent, wait=wait)
        # Nothing is awaited in between: a request that comes from now on is held.
        for request_id in mine:
            if request_id not in answers and hold > 0.0:
                found.requests.holds.hold_request(one, request_id, hold)
            answers.setdefault(request_id, not_found(request_id, hold))
    note_unreached(request.scope, silent)
    return {request_id: answers[request_id] for request_id in ids}


@router.post("/v1/sessions/{session_id:path}/cancel")
async def cancel_session(
    request: Request,
    meant: Meant,
    session_id: PathName,
    *,
    wait: Wait = True,
    hold: Hold = 0.0,
    descendants: bool = True,
) -> Any:
    cancels, session = router_of(request).cancels, checked(session_id, "session_id")
    owner = await cancels.owner_of_session(session, hold) if meant is None else meant
    silent = set[ModelProcess]()
    known, cancelled = await cancels.by_session(session, owner, hold, silent, descendants=descendants, wait=wait)
    note_unreached(request.scope, silent)
    if not known and hold == 0.0:
        raise unknown_session()
    told = SessionCancelAnswer(
        session=session_id,
        descendants=descendants,
        requests=list(cancelled.values()),
        hold_seconds=hold or None,
    )
    return JSONResponse(told, 200 if known else 202)


@router.get("/v1/sessions")
async def list_sessions(request: Request, seen: Seen, live: bool = False) -> Any:
    replies = await asked(request, ListSessions(owner=seen), Sessions)
    found = merged_sessions({name: reply.data for name, reply in replies.items()})
    return listed(request, [one for one in found if one["requests"] or not live])


@router.get("/v1/events")
async def follow_events(request: Request, seen: Seen) -> Response:
    state, scope = state_of(request), request.scope
    return ModelsFeed(
        router_of(request),
        Message.of(scope, b""),
        seats=request.app.state.seats,
        owner=owner_of(scope),
        seen=seen,
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
            status, told, response = await told_by(process.socket, request)
            return response if several or status != 200 else told | {"is_sleeping": False}
    if not several:
        return props_of_all(found.keeper, found) | {"is_sleeping": found.keeper.model(spec.name).asleep}
    raise ApiError(400, f"the model {spec.name} is not loaded", param="model", code="model_not_loaded")


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics of all processes, each sample with the label `model`, and `replica` if there are several."""
    check_may_see_all(request)
    keeper = router_of(request).keeper
    ready = keeper.ready()
    told = await asyncio.gather(*(told_by(one.socket, request) for one in ready), return_exceptions=True)
    note_unreached(
        request.scope, [one for one, answer in zip(ready, told, strict=True) if isinstance(answer, ApiError)]
    )
    texts = {
        labels_of(one, keeper.catalog.workers.get(one.name)): bytes(answer[2].body).decode()
        for one, answer in zip(ready, told, strict=True)
        if not isinstance(answer, BaseException) and answer[0] == 200
    }
    return Response(labelled(texts), media_type="text/plain; version=0.0.4; charset=utf-8")


def labels_of(process: ModelProcess, spec: Spec | None) -> str:
    several = spec is not None and spec.replicas > 1
    return f'model="{escaped(process.model)}"' + (f',replica="{replica_of(process.name)}"' if several else "")


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


async def told_by(socket: Path, request: Request) -> tuple[int, Any, Response]:
    """Return the status, the content and the whole of a process's answer to this request; ApiError if it is late."""
    message = Message.of(request.scope, b"")
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            exchange = await Exchange.begin(socket, message.method, message.target, message.headers, b"")
            try:
                head, content = await exchange.head(), await exchange.whole()
            finally:
                exchange.close()
    except (TimeoutError, OSError):
        raise unreached() from None
    response = Response(content, head.status)
    response.raw_headers = [(name, value) for name, value in head.headers if name not in OF_ANSWER]
    is_json = head.get(b"content-type").startswith(b"application/json")
    return head.status, json.loads(content) if is_json else None, response
