"""Requests to replicas of a fleet, and how they stand."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.ray.cluster import RayReplica
from tests.support.http_process import COMPLETIONS, RawClient, fresh_id, post_bytes

LONG = {"max_tokens": 1_900, "ignore_eos": True}


def ask(
    clients: ExitStack, port: int, headers: dict[str, str] | None = None, path: str = COMPLETIONS, **fields: Any
) -> tuple[RawClient, str]:
    """Send a request that takes long; its client, and its id."""
    client = clients.enter_context(RawClient(port))
    request_id = fresh_id()
    client.socket.sendall(with_headers(post_bytes(request_id, path, **LONG | fields), headers or {}))
    return client, request_id


def running(replica: RayReplica, request_id: str) -> dict[str, Any]:
    """Wait until a request computes, wherever that is."""
    return replica.wait_for(request_id, completion_tokens=lambda n: n > 0)


def ended(replica: RayReplica, request_id: str) -> dict[str, Any]:
    """Wait until it has ended."""
    return replica.wait_for(request_id, status=lambda status: status in ("cancelled", "finished", "error"))


def with_headers(request: bytes, headers: dict[str, str]) -> bytes:
    head, separator, body = request.partition(b"\r\n\r\n")
    return head + "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode() + separator + body
