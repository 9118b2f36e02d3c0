"""Calls to the server beside the feed: cancels, and their answers, in a sentence."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import httpx

from pyllmcancel.top.feed import FeedError, message_in, reason_of
from pyllmcancel.top.text import count, milliseconds, plain
from pyllmcancel.top.values import is_number, read_json

CANCEL_SECONDS = 30.0  # the answer comes when the computation has stopped
LONGEST_ANSWER = 16 << 20  # bytes; the largest names each request of a session


def open_client(url: str, api_key: str) -> httpx.AsyncClient:
    """Return a client of the server at `url`, with or without ``/v1``; FeedError if `url` is not an address."""
    try:
        parsed = httpx.URL(url if "://" in url else f"http://{url}")
        parsed = parsed.copy_with(path=parsed.path.rstrip("/").removesuffix("/v1"), query=None, fragment=None)
    except httpx.InvalidURL as error:
        raise FeedError(f"--url {plain(url)} is not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise FeedError(f"--url {plain(url)} is not a server's address, such as http://127.0.0.1:8000")
    try:
        headers = {b"Authorization": f"Bearer {api_key}".encode("latin-1")} if api_key else {}
    except UnicodeEncodeError:
        raise FeedError("--api-key contains characters that a header cannot carry") from None
    return httpx.AsyncClient(base_url=parsed, headers=headers)


async def cancel_request(client: httpx.AsyncClient, request_id: str, owner: str = "") -> str:
    """Cancel a request, wait until its computation has stopped, and return the result in words.

    `owner` names the owner, for an administrator's key: several owners may have this id or session name.
    """
    answer = await post(client, "requests", request_id, owner)
    return answer if isinstance(answer, str) else f"{plain(request_id)}: {told(answer)}"


async def cancel_session(client: httpx.AsyncClient, session: str, owner: str = "") -> str:
    """Cancel the requests of a session and its descendants, wait, and return the result in words; `owner` as for a
    request.
    """
    answer = await post(client, "sessions", session, owner)
    if isinstance(answer, str):
        return answer
    listed = answer.get("requests")
    requests = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    if not requests:
        return f"session {plain(session)}: nothing was live"
    if len(requests) == 1:
        return f"session {plain(session)}: {told(requests[0])}"
    latencies = [one["cancel_latency_ms"] for one in requests if is_number(one.get("cancel_latency_ms"))]
    slowest = f", compute stopped after at most {milliseconds(max(latencies))}" if latencies else ""
    return f"session {plain(session)}: {count(len(requests), 'request')} cancelled{slowest}"


async def post(client: httpx.AsyncClient, kind: str, name: str, owner: str) -> dict[str, Any] | str:
    """Return the answer's fields, or a sentence about the error."""
    # Not compressed: the bytes read are limited, but the unpacked text would not be.
    headers = {"Accept-Encoding": "identity"}
    content = bytearray()
    try:
        path = f"v1/{kind}/{in_path(name)}/cancel"
        params = {"owner": owner} if owner else None
        async with client.stream("POST", path, params=params, headers=headers, timeout=CANCEL_SECONDS) as answer:
            async for data in answer.aiter_raw():
                content += data
                if len(content) > LONGEST_ANSWER:
                    break
    except (UnicodeEncodeError, httpx.InvalidURL):
        return "not cancelled: its name does not fit into an address"
    except httpx.TimeoutException:
        return f"no answer in {CANCEL_SECONDS:.0f} s: it may or may not be cancelled"
    except httpx.RequestError as error:
        return f"not cancelled: {reason_of(error)}"
    found = read_json(content) if answer.is_success else None
    if isinstance(found, dict):
        return found
    said = message_in(content) or plain(answer.reason_phrase) or "the answer was not understood"
    return f"not cancelled: {answer.status_code}: {said}"


def told(answer: dict[str, Any]) -> str:
    """Return a cancel's answer in words."""
    if answer.get("outcome") == "already_finished":
        return f"it had ended already ({plain(answer.get('reason'))})"
    latency, usage = answer.get("cancel_latency_ms"), answer.get("usage")
    stopped = f"compute stopped after {milliseconds(latency)}" if is_number(latency) else "cancelled"
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    done = f", {count(tokens, 'token')} generated" if isinstance(tokens, int) else ""
    return f"{stopped}, in {plain(answer.get('phase'))}{done}"


def in_path(name: str) -> str:
    """Quote a name as one part of a path: clients choose names, which may contain dots and slashes."""
    return quote(name, safe="").replace(".", "%2E")
