"""``/v1/requests`` and ``/v1/sessions`` over all models: what the processes answer, and the requests that wait here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from pyllmcancel.router.feed import ModelsFeed
from pyllmcancel.router.forwarding import OF_ANSWER, Message
from pyllmcancel.router.front import PATIENCE
from pyllmcancel.router.llama_feed import LlamaModelsFeed
from pyllmcancel.router.routed import mark_of
from pyllmcancel.router.routes_models import props as props_of_all
from pyllmcancel.router.routes_models import router_of
from pyllmcancel.router.upstream import Broken, Exchange
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import is_admin, owner_of
from pyllmcancel.server.http.request_context import SANE_ID, bad_id
from pyllmcancel.server.origin import checked
from pyllmcancel.server.requests.answers import SessionCancelAnswer
from pyllmcancel.server.requests.body import CancelBody
from pyllmcancel.server.requests.routes import Hold, PathName, Wait, not_found, unknown_id
from pyllmcancel.server.requests.sessions import unknown_session
from pyllmcancel.server.requests.visible import admin_only, check_may_see_all, may_see_all, only
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from pyllmcancel.router.routed import RoutedRequest

router = APIRouter(include_in_schema=False)

MAX_PARSED = 1 << 18  # bytes of a body that is parsed here
ASKING_SECONDS = 5.0  # a process asks the others for less than that
UNREACHED = "x-unreached"  # the header that names the servers which a process could not ask


def owner_seen(request: Request) -> str | None:
    """Return the owner whose requests may be seen; None: everybody's. An administrator may name one."""
    return request.query_params.get("owner") if is_admin(request.scope) else owner_of(request.scope)


def owner_meant(request: Request, named: str | None = None) -> str | None:
    """Return the owner whose requests are to be cancelled; None: everybody's. ApiError 403 if it is another one."""
    named = request.query_params.get("owner") if named is None else named
    if is_admin(request.scope):
        return named
    own = owner_of(request.scope)
    if named not in (None, own):
        raise admin_only("owner")
    return own


def owner_held(request: Request) -> str:
    """Return the owner for whom an id is to be held; ApiError if an administrator does not name one."""
    seen = owner_seen(request)
    return only(set(), hold=1.0) if seen is None else seen


@router.get("/v1/requests")
async def list_requests(request: Request) -> Any:
    query, found = request.query_params, router_of(request)
    matching = [
        one
        for one in found.requests.of(owner_seen(request))
        if query.get("session") in (None, one.session) and query.get("status") in (None, "waiting")
    ]
    here = await found.cancels.strangers(matching)
    # Only now: a request that becomes known meanwhile is in one of the lists, or in both.
    answer = await asked(request)
    live = set(found.requests.of(None))
    here = [one for one in here if one in live]
    if answer is None:
        return {"object": "list", "data": [one.entry() for one in here]}
    status, told, response = answer
    if status != 200:
        return response
    known = set(map(mark_of, told["data"]))
    return told | {"data": [*(one.entry() for one in here if one.mark not in known), *told["data"]]}


@router.get("/v1/requests/{request_id:path}")
async def get_request(request: Request, request_id: str) -> Any:
    requests, seen = router_of(request).requests, owner_seen(request)
    for one in requests.waiting(seen):
        if one.id == request_id:
            return one.entry()
    answer = await asked(request)
    if answer is not None and answer[0] != 404:
        return answer[2]
    for one in requests.of(seen):
        if one.id == request_id and not one.is_known:
            return one.entry()
    if answer is None:
        raise unknown_id()
    return answer[2]


@router.post("/v1/requests/cancel")
async def cancel_requests(request: Request, wait: Wait = True, hold: Hold = 0.0) -> Any:
    body = await request.body()
    if len(body) > MAX_PARSED:
        return await else_asked(request, unknown_id(), body)
    try:
        wanted = CancelBody.model_validate_json(body)
    except ValidationError:  # a process words the error
        told = "the body must name request_ids, or a session, owner or status"
        return await else_asked(request, ApiError(400, told, code="invalid_request"), body)
    seen = owner_meant(request, wanted.owner)
    if wanted.request_ids is not None:
        found = await cancelled_by_id(request, dict.fromkeys(wanted.request_ids), seen, wait=wait, hold=hold)
        return {"object": "list", "data": list(found.values())}
    cancels = router_of(request).cancels
    matching = [one for one in router_of(request).requests.of(seen) if matches(one, wanted)]
    cancelled = {one.id: one.cancelled() for one in matching if one.cancel()}
    sent = await cancels.strangers([one for one in matching if not one.waits])
    more, answers = await asyncio.gather(cancels.cancel_all(sent, wait=wait), told_everywhere(request, body))
    cancelled |= more
    if (refusal := refused(answers)) is not None:
        return refusal
    return {"object": "list", "data": list(merged(cancelled.values(), answers, "data").values())}


def matches(one: RoutedRequest, wanted: CancelBody) -> bool:
    """Return whether a filter means a request, if no process knows it yet."""
    return wanted.status in (None, "waiting") and wanted.session in (None, one.session)


@router.post("/v1/requests/{request_id:path}/cancel")
@router.delete("/v1/requests/{request_id:path}")
async def cancel_request(request: Request, request_id: PathName, wait: Wait = True, hold: Hold = 0.0) -> Any:
    found = await cancelled_by_id(request, [request_id], owner_meant(request), wait=wait, hold=hold)
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
    processes = [one for one in found.keeper.processes.values() if one.is_ready]
    if owner is None:
        owners = await found.cancels.owners_of(ids, processes, hold)
    else:
        owners = dict.fromkeys(ids, owner)
    answers: dict[str, Any] = {}
    for one in set(owners.values()):
        mine = [request_id for request_id in ids if owners[request_id] == one]
        answers |= await found.cancels.cancel(mine, one, processes, wait=wait)
        # Nothing is awaited in between: a request that comes from now on is held.
        for request_id in mine:
            if request_id not in answers and hold > 0.0:
                found.requests.holds.hold_request(one, request_id, hold)
            answers.setdefault(request_id, not_found(request_id, hold))
    return {request_id: answers[request_id] for request_id in ids}


@router.post("/v1/sessions/{session_id:path}/cancel")
async def cancel_session(
    request: Request, session_id: PathName, wait: Wait = True, hold: Hold = 0.0, descendants: bool = True
) -> Any:
    found, owner = router_of(request), owner_meant(request)
    if hold > 0.0:
        # A name that no request can have is refused, as by a process.
        session = checked(session_id, "session_id")
        found.requests.holds.hold_session(owner_held(request), session, hold, descendants=descendants)
    family = [one for one in found.requests.family(owner, session_id, descendants=descendants) if not one.is_known]
    cancelled, answers = await asyncio.gather(
        found.cancels.cancel_all(family, wait=wait), told_everywhere(request, await request.body())
    )
    if (refusal := refused(answers)) is not None:
        return refusal
    known = bool(cancelled) or any(status == 200 for status, _, _ in answers)
    if not known and hold == 0.0:
        raise unknown_session()
    told = SessionCancelAnswer(
        session=session_id,
        descendants=descendants,
        requests=list(merged(cancelled.values(), answers, "requests").values()),
        hold_seconds=hold or None,
    )
    return JSONResponse(told, 200 if known else 202)


@router.get("/v1/sessions")
async def list_sessions(request: Request) -> Any:
    answer = await asked(request)
    return {"object": "list", "data": []} if answer is None else answer[2]


@router.get("/v1/events")
async def follow_events(request: Request) -> Response:
    state, scope = state_of(request), request.scope
    return ModelsFeed(
        router_of(request),
        Message.of(scope, b""),
        seats=request.app.state.seats,
        owner=owner_of(scope),
        seen=owner_seen(request),
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
    process = found.keeper.processes.get(spec.name)
    if process is not None and process.is_ready:
        with suppress(Broken, OSError, ValueError):  # it is about to end
            status, told, response = await told_by(process.socket, request, b"")
            return response if several or status != 200 else told | {"is_sleeping": False}
    if not several:
        return props_of_all(found.keeper, found) | {"is_sleeping": found.keeper.model(spec.name).asleep}
    raise ApiError(400, f"the model {spec.name} is not loaded", param="model", code="model_not_loaded")


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return the metrics of all processes, each sample with the label `model`."""
    check_may_see_all(request)
    ready = [one for one in router_of(request).keeper.processes.values() if one.is_ready]
    told = await asyncio.gather(*(told_by(one.socket, request, b"") for one in ready), return_exceptions=True)
    texts = {
        one.name: bytes(answer[2].body).decode()
        for one, answer in zip(ready, told, strict=True)
        if not isinstance(answer, BaseException) and answer[0] == 200
    }
    return Response(labelled(texts), media_type="text/plain; version=0.0.4; charset=utf-8")


def labelled(texts: dict[str, str]) -> str:
    """Merge texts in Prometheus' format: the samples of a name stay together, each with the label of its text."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for model, text in texts.items():
        label = f'model="{escaped(model)}"'
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


# -- asking the processes ---------------------------------------------------------------------------------------------

Told = tuple[int, Any, Response]


async def else_asked(request: Request, error: ApiError, body: bytes = b"") -> Response:
    """Return what a process answers; raise the error if no model is loaded."""
    answer = await asked(request, body)
    if answer is None:
        raise error
    return answer[2]


async def asked(request: Request, body: bytes = b"") -> Told | None:
    """Return the status and content of a process's answer, which knows those of all others; None if there is none."""
    process = router_of(request).any_process()
    return None if process is None else await told_if_there(process.socket, request, body)


async def told_everywhere(request: Request, body: bytes = b"") -> list[Told]:
    """Return a process's answer; if it has ended, is stuck, or could not ask all others in its time, theirs, too.

    A cancel must not be lost because a process is busy: each is asked here, and has `PATIENCE`.
    """
    first: Told | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(ASKING_SECONDS):
            first = await asked(request, body)
    if first is not None and UNREACHED not in first[2].headers:
        return [first]
    ready = [one for one in router_of(request).keeper.processes.values() if one.is_ready]
    told = await asyncio.gather(*(told_in_time(one.socket, request, body) for one in ready))
    return [answer for answer in (first, *told) if answer is not None]


async def told_in_time(socket: Any, request: Request, body: bytes) -> Told | None:
    """Return a process's answer; None if it has ended, or does not answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            return await told_if_there(socket, request, body)
    return None


async def told_if_there(socket: Any, request: Request, body: bytes) -> Told | None:
    """Return a process's answer; None if it has ended, and its requests with it."""
    try:
        return await told_by(socket, request, body)
    except (Broken, OSError, ValueError):
        return None


def refused(answers: list[Told]) -> Response | None:
    """Return the first process's answer if it is an error, other than that it knows nothing of what is named."""
    return answers[0][2] if answers and answers[0][0] not in (200, 202, 404) else None


def merged(cancelled: Iterable[Any], answers: list[Told], name: str) -> dict[str, Any]:
    """Return the entries of all answers by their ids; of two about one request, that of the cancel."""
    found = {entry["id"]: entry for entry in cancelled}
    for _, told, _ in answers:
        for entry in told.get(name, ()) if isinstance(told, dict) else ():
            if entry["id"] not in found or entry["outcome"] == "cancelled":
                found[entry["id"]] = entry
    return found


async def told_by(socket: Any, request: Request, body: bytes) -> Told:
    message = Message.of(request.scope, body)
    exchange = await Exchange.begin(socket, message.method, message.target, message.headers, body)
    try:
        head, content = await exchange.head(), await exchange.whole()
    finally:
        exchange.close()
    response = Response(content, head.status)
    response.raw_headers = [(name, value) for name, value in head.headers if name not in OF_ANSWER]
    is_json = head.get(b"content-type").startswith(b"application/json")
    return head.status, json.loads(content) if is_json else None, response
