"""``/v1/requests`` and ``/v1/sessions`` over all models: what the processes answer, and the requests that wait here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError

from pyllmcancel.router.feed import ModelsFeed
from pyllmcancel.router.forwarding import OF_ANSWER, Message
from pyllmcancel.router.newer import PATIENCE
from pyllmcancel.router.routes_models import props as props_of_all
from pyllmcancel.router.routes_models import router_of
from pyllmcancel.router.upstream import Broken, Exchange
from pyllmcancel.server.errors.responses import ApiError
from pyllmcancel.server.http.api_keys import is_admin, owner_of
from pyllmcancel.server.http.request_context import SANE_ID, bad_id
from pyllmcancel.server.origin import checked
from pyllmcancel.server.requests.answers import SessionCancelAnswer
from pyllmcancel.server.requests.body import CancelBody
from pyllmcancel.server.requests.routes import Hold, PathName, not_found, unknown_id
from pyllmcancel.server.requests.sessions import unknown_session
from pyllmcancel.server.requests.visible import check_may_see_all, may_see_all, only
from pyllmcancel.server.state import state_of

if TYPE_CHECKING:
    from pyllmcancel.router.waiting import Waiting

router = APIRouter(include_in_schema=False)

MAX_PARSED = 1 << 18  # bytes of a body that is parsed here
NOWHERE = ("unknown", "held")
ASKING_SECONDS = 5.0  # a process asks the others for less than that
UNREACHED = "x-unreached"  # the header that names the servers which a process could not ask


def owner_seen(request: Request) -> str | None:
    """Return the owner whose requests may be seen; None: everybody's. An administrator may name one."""
    return request.query_params.get("owner") if is_admin(request.scope) else owner_of(request.scope)


def owner_held(request: Request) -> str:
    """Return the owner for whom an id is to be held; ApiError if an administrator does not name one."""
    seen = owner_seen(request)
    return only(set(), hold=1.0) if seen is None else seen


@router.get("/v1/requests")
async def list_requests(request: Request) -> Any:
    query = request.query_params
    entries = [
        one.entry()
        for one in router_of(request).waiting.of(owner_seen(request))
        if query.get("session") in (None, one.session) and query.get("status") in (None, "waiting")
    ]
    answer = await asked(request)
    if answer is None:
        return {"object": "list", "data": entries}
    status, told, response = answer
    if status != 200:
        return response
    return told | {"data": [*entries, *told["data"]]}


@router.get("/v1/requests/{request_id:path}")
async def get_request(request: Request, request_id: str) -> Any:
    found = waiting_by_id(request, request_id)
    if found:
        return found[0].entry()
    return await else_asked(request, unknown_id())


@router.post("/v1/requests/cancel")
async def cancel_requests(request: Request, hold: Hold = 0.0) -> Any:
    body = await request.body()
    if len(body) > MAX_PARSED:
        return await else_asked(request, unknown_id(), body)
    try:
        wanted = CancelBody.model_validate_json(body)
    except ValidationError:
        wanted = None  # a process words the error
    cancelled = {} if wanted is None else cancelled_in(matching(request, wanted))
    answers = await told_everywhere(request, body)
    if not answers and wanted is None:
        raise ApiError(400, "the body must name request_ids, or a session, owner or status", code="invalid_request")
    if (refusal := refused(answers)) is not None:
        return refusal
    found = [one for one in merged(answers, "data") if one["outcome"] not in NOWHERE]
    if wanted is None or wanted.request_ids is None:
        return {"object": "list", "data": [*cancelled.values(), *found]}
    cancelled |= cancelled_in(matching(request, wanted))  # those that came meanwhile
    known = cancelled.keys() | {one["id"] for one in found}
    missing = [one for one in dict.fromkeys(wanted.request_ids) if one not in known]
    held = [held_or_unknown(request, one, hold, wanted.owner) for one in missing]
    return {"object": "list", "data": [*cancelled.values(), *found, *held]}


def cancelled_in(waiting: Iterable[Waiting]) -> dict[str, Any]:
    """Cancel those that still wait; return the answers by their ids."""
    return {one.id: one.cancelled() for one in waiting if one.cancel()}


def held_or_unknown(request: Request, request_id: str, hold: float, owner: str | None = None) -> Any:
    """Return the answer for an id that no model knows; it is held here if `hold` is positive, for those that are loaded
    later.
    """
    if hold > 0.0:
        if not SANE_ID.fullmatch(request_id):
            raise bad_id("request_id")  # no request of this id can come
        router_of(request).waiting.holds.hold_request(owner or owner_held(request), request_id, hold)
    return not_found(request_id, hold)


@router.post("/v1/requests/{request_id:path}/cancel")
@router.delete("/v1/requests/{request_id:path}")
async def cancel_request(request: Request, request_id: PathName, hold: Hold = 0.0) -> Any:
    """Cancel a request that waits here, or have the processes cancel it. It may come while they are asked."""
    if cancelled := cancelled_in(waiting_by_id(request, request_id)):
        return cancelled[request_id]
    answers = await told_everywhere(request)
    if (refusal := refused(answers)) is not None:
        return refusal
    if (found := next((response for status, _, response in answers if status == 200), None)) is not None:
        return found
    if cancelled := cancelled_in(waiting_by_id(request, request_id)):
        return cancelled[request_id]
    if hold > 0.0:
        return JSONResponse(held_or_unknown(request, request_id, hold), 202)
    raise unknown_id()


@router.post("/v1/sessions/{session_id:path}/cancel")
async def cancel_session(request: Request, session_id: PathName, hold: Hold = 0.0, descendants: bool = True) -> Any:
    waiting = router_of(request).waiting
    if hold > 0.0:
        # A name that no request can have is refused, as by a process.
        session = checked(session_id, "session_id")
        waiting.holds.hold_session(owner_held(request), session, hold, descendants=descendants)
    cancelled = cancelled_in(waiting.family(owner_seen(request), session_id, descendants=descendants))
    answers = await told_everywhere(request, await request.body())
    if (refusal := refused(answers)) is not None:
        return refusal
    known = any(status == 200 for status, _, _ in answers)
    if not (known or cancelled or hold > 0.0):
        raise unknown_session()
    requests = [*cancelled.values(), *merged(answers, "requests")]
    told = SessionCancelAnswer(
        session=session_id, descendants=descendants, requests=requests, hold_seconds=hold or None
    )
    return JSONResponse(told, 200 if known or cancelled else 202)


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


def merged(answers: list[Told], name: str) -> list[Any]:
    """Return the entries of all answers; of two about one request, that of the cancel."""
    found: dict[str, Any] = {}
    for _, told, _ in answers:
        for entry in told.get(name, ()) if isinstance(told, dict) else ():
            if entry["id"] not in found or entry["outcome"] == "cancelled":
                found[entry["id"]] = entry
    return list(found.values())


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


def waiting_by_id(request: Request, request_id: str) -> list[Waiting]:
    return [one for one in router_of(request).waiting.of(owner_seen(request)) if one.id == request_id]


def matching(request: Request, wanted: CancelBody) -> list[Waiting]:
    """Return the waiting requests that a body names."""
    seen = owner_seen(request)
    if wanted.owner is not None and seen not in (None, wanted.owner):
        return []  # a process refuses it
    mine = router_of(request).waiting.of(wanted.owner if wanted.owner is not None else seen)
    if wanted.request_ids is not None:
        return [one for one in mine if one.id in wanted.request_ids]
    if wanted.status not in (None, "waiting"):
        return []
    return [one for one in mine if wanted.session in (None, one.session)]
