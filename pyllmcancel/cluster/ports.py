"""Ports of this machine: free ones for the replicas, and a check of the balancer's own."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from pyllmcancel.errors import UsageError
from pyllmcancel.server.http.listening import close_all, listen

LOOPBACK = "127.0.0.1"


def free_ports(n: int) -> Sequence[int]:
    """Return different ports: all are held until all are known."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(n)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]


def check_free(host: str, port: int) -> None:
    """Raise UsageError if the balancer could not listen there."""
    try:
        close_all(listen(host, port))
    except OSError as error:
        raise UsageError(str(error.strerror)) from None


def bind_text(host: str, port: int) -> str:
    """Return the address in HAProxy's form."""
    hosts = [one.strip() for one in host.split(",")]
    return ",".join(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts)
