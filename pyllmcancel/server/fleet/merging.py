"""The answers of several replicas as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyllmcancel.server.fleet.messages import Cancelled
    from pyllmcancel.server.requests.answers import CancelAnswer, RequestEntry, SessionEntry


def merged_requests(found: Mapping[str, Sequence[RequestEntry]]) -> list[RequestEntry]:
    """Merge lists by replica: live requests, oldest first, then ended ones, the last one first."""
    named: list[RequestEntry] = [{**entry, "replica": name} for name, entries in found.items() for entry in entries]
    live = [entry for entry in named if entry["finish_reason"] is None]
    ended = [entry for entry in named if entry["finish_reason"] is not None]
    live.sort(key=lambda entry: entry["created"])
    ended.sort(key=lambda entry: entry["created"] + entry["seconds"], reverse=True)
    return live + ended


def merged_sessions(found: Mapping[str, Sequence[SessionEntry]]) -> list[SessionEntry]:
    """Merge lists by replica. Entries of one session are merged; the most recently used session comes first."""
    merged: dict[tuple[str, str], SessionEntry] = {}
    for name, entries in found.items():
        for entry in entries:
            key = entry["owner"], entry["id"]
            known = merged.get(key)
            merged[key] = {**entry, "replicas": [name]} if known is None else together(known, entry, name)
    return sorted(merged.values(), key=lambda entry: entry["used"], reverse=True)


def together(one: SessionEntry, other: SessionEntry, name: str) -> SessionEntry:
    """Merge one session with its entry on the replica of this `name`."""
    return {
        "id": one["id"],
        "object": "session",
        "owner": one["owner"],
        "parent": one["parent"] if one["parent"] is not None else other["parent"],
        "children": sorted({*one["children"], *other["children"]}),
        "requests": [*one["requests"], *other["requests"]],
        "n_requests": one["n_requests"] + other["n_requests"],
        "created": min(one["created"], other["created"]),
        "used": max(one["used"], other["used"]),
        "replicas": [*(one.get("replicas") or ()), name],
    }


def merged_cancels(ids: Iterable[str], replies: Sequence[Cancelled]) -> dict[str, list[CancelAnswer]]:
    """Merge reports by id: requests that were cancelled on any replica, else those that had ended before."""
    found: dict[str, list[CancelAnswer]] = {}
    for request_id in ids:
        live = [one for reply in replies for one in reply.live.get(request_id, ())]
        ended = [one for reply in replies for one in reply.ended.get(request_id, ())]
        if live or ended:
            found[request_id] = live or ended[:1]
    return found
