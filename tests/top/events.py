"""Events as the feed has them: docs/events.md."""

from __future__ import annotations

import json
from typing import Any

EPOCH = 1_700_000_000.0  # of the server's second 0
Fields = dict[str, Any]


def entry(request_id: str, **changed: Any) -> Fields:
    """A request that has just come; `times` are only the given ones."""
    times = dict.fromkeys(("arrived", "admitted", "first_token", "cancelled", "ended")) | changed.pop("times", {})
    found = {
        "id": request_id,
        "object": "request",
        "status": "waiting",
        "phase": "waiting",
        "owner": "",
        "session": None,
        "parent_session": None,
        "supersede": None,
        "priority": 0,
        "n": 1,
        "slots": [],
        "paused": False,
        "prompt_tokens": 100,
        "prompt_tokens_done": 0,
        "cached_tokens": 0,
        "completion_tokens": 0,
        "max_tokens": 64,
        "finish_reason": None,
        "cancel_reason": None,
        "superseded_by": None,
        "cancel_latency_ms": None,
        "error": None,
        "created": EPOCH,
        "seconds": 0.0,
        "times": times,
    }
    assert changed.keys() <= found.keys()
    return found | changed


def over(request_id: str, at: float, **changed: Any) -> Fields:
    """The entry of one that has ended."""
    cancelled = changed.get("cancel_reason") is not None
    ending = {"status": "cancelled", "finish_reason": "cancelled"} if cancelled else {"status": "finished"}
    times = {"arrived": 0.0, "admitted": 0.0, "ended": at}
    return entry(request_id, **({"finish_reason": "stop", "phase": "decode", "times": times} | ending | changed))


def snapshot(*requests: Fields, at: float = 0.0, boot: str = "b1", epoch: float = EPOCH, **changed: Any) -> Fields:
    return {
        "type": "snapshot",
        "reason": "new",
        "at": at,
        "epoch": epoch + at,
        "server": {"version": "1.2.3", "boot": boot, "started": epoch},
        "model": {"id": "small-model", "description": "llama 15M F16", "memory": "attention"},
        "capacity": {"slots": 4, "cells": 4096, "n_ctx": 4096},
        "all_owners": True,
        "exposes_prompts": False,
        "requests": list(requests),
        "sessions": [],
        "stats": stats(at),
    } | changed


def added(request: Fields) -> Fields:
    return {"type": "added", "at": request["times"]["arrived"] or 0.0, "request": request}


def admitted(request_id: str, at: float, slot: int, cached: int = 0, owner: str = "") -> Fields:
    return {"type": "admitted", "at": at, "id": request_id, "owner": owner, "slots": [slot], "cached_tokens": cached}


def part(request_id: str, slot: int | None, phase: str, n_tokens: int) -> Fields:
    return {"request": request_id, "choice": 0, "slot": slot, "phase": phase, "n_tokens": n_tokens}


def step(at: float, until: float, *parts: Fields, status: str = "ok") -> Fields:
    return {
        "type": "step",
        "number": 1,
        "n_steps": 1,
        "at": at,
        "until": until,
        "busy": until - at,
        "status": status,
        "spared": False,
        "survivors": 0,
        "wasted": 0,
        "threads": 1,
        "sequences": list(parts),
        "others": 0,
    }


def cancelled(request_id: str, at: float, reason: str = "explicit", by: str | None = None) -> Fields:
    return {"type": "cancelled", "at": at, "id": request_id, "owner": "", "reason": reason, "superseded_by": by}


def ended(request: Fields) -> Fields:
    return {"type": "ended", "at": request["times"]["ended"], "request": request}


def stats(at: float, **changed: Any) -> Fields:
    names = ("waiting", "running", "slots_used", "cells_used", "generated_tokens", "wasted_tokens", "saved_tokens")
    return {"type": "stats", "at": at} | dict.fromkeys(names, 0) | {"cancels": {}} | changed


def event_bytes(fields: Fields, event_id: str = "") -> bytes:
    """As it goes over the wire."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {fields['type']}\ndata: {json.dumps(fields)}\n\n".encode()


def busy_server() -> list[Fields]:
    """Half a minute of a server: a long prompt that is cut off, an answer, a queue, a typing editor."""
    events = [snapshot(over("chat-0", 0.0), at=0.0)]
    events += [added(entry("agent-main", times={"arrived": 1.0}, session="agent", prompt_tokens=600, max_tokens=500))]
    events += [admitted("agent-main", 1.0, 0, cached=88)]
    events += [step(1.0 + i * 0.5, 1.5 + i * 0.5, part("agent-main", 0, "prefill", 128)) for i in range(4)]
    events += [step(3.0, 12.0, part("agent-main", 0, "decode", 270))]
    paste = {
        "prompt_tokens": 9000,
        "prompt_tokens_done": 4096,
        "times": {"arrived": 4.0, "admitted": 4.0, "ended": 8.1},
    }
    events += [added(entry("paste", times={"arrived": 4.0}, prompt_tokens=9000)), admitted("paste", 4.0, 1)]
    events += [step(4.0, 7.5, part("paste", 1, "prefill", 4096)), cancelled("paste", 8.0, "disconnect")]
    events += [step(7.5, 8.1, part("paste", 1, "prefill", 512), status="aborted")]
    paste |= {"cancel_reason": "disconnect", "cancel_latency_ms": 1.94, "phase": "prefill", "slots": [1]}
    events += [ended(over("paste", 8.1, **paste))]
    for i in range(3):
        key, at, name = " user me completion", 8.5 + i, f"key-{i}"
        events += [added(entry(name, times={"arrived": at}, supersede=key, prompt_tokens=40))]
        events += [admitted(name, at, 2), step(at, at + 0.2, part(name, 2, "prefill", 40))]
        events += [step(at + 0.2, at + 0.9, part(name, 2, "decode", 12))]
        if i < 2:
            gone = {"cancel_reason": "superseded", "superseded_by": f"key-{i + 1}", "cancel_latency_ms": 3.1 + i}
            times = {"arrived": at, "admitted": at, "ended": at + 0.95}
            events += [cancelled(name, at + 0.94, "superseded", f"key-{i + 1}")]
            events += [
                ended(over(name, at + 0.95, slots=[2], completion_tokens=13, supersede=key, times=times, **gone))
            ]
    events += [added(entry(f"queued-{i}", times={"arrived": 11.0}, session="agent/helper")) for i in range(2)]
    figures = {"waiting": 2, "running": 2, "slots_used": 2, "cells_used": 947, "wasted_tokens": 538}
    events += [stats(12.0, saved_tokens=5_031, **figures)]
    return events
