"""Fronts and workers on several machines."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pyllmcancel.errors import UsageError
from pyllmcancel.front.place import DNS, FrontAddress, Place
from pyllmcancel.front.spec import fitting
from pyllmcancel.server.config import ServerConfig
from pyllmcancel.server.http.listening import Listener, is_unix

HTTP = ("http", "https")
ANY = "any"
WILDCARDS = ("0.0.0.0", "::")


def worker_key(arguments: argparse.Namespace) -> str | None:
    """Return the key of ``--worker-key``; UsageError or OSError if the file has none."""
    path: Path | None = arguments.worker_key
    if path is None:
        if arguments.workers or arguments.worker is not None:
            raise UsageError("--workers and --worker need --worker-key, a file with the key of both sides")
        return None
    key = path.read_text("utf-8-sig").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"--worker-key {path} must have one line of ASCII characters, not empty")
    return key


def front_of(arguments: argparse.Namespace) -> FrontAddress | None:
    """Return where a worker registers itself; UsageError if that is no address."""
    if arguments.worker is None:
        if arguments.worker_url is not None:
            raise UsageError("--worker-url needs --worker")
        return None
    if arguments.worker_url is not None:
        Place.parse(arguments.worker_url, *HTTP)
    return FrontAddress(Place.parse(arguments.worker, *HTTP), arguments.worker_url, arguments.worker_ca)


def places_of(arguments: argparse.Namespace) -> tuple[Place, ...]:
    """Return the addresses of ``--workers``; UsageError if one is none."""
    return tuple(Place.parse(text, *HTTP, DNS) for text in dict.fromkeys(arguments.workers) if text != ANY)


def named(config: ServerConfig, listeners: Sequence[Listener]) -> ServerConfig:
    """Return the settings with a name for this server, if it is a worker and was given no name."""
    if config.worker_key is None or config.replica is not None or is_unix(listeners[0]):
        return config
    host, port = listeners[0].getsockname()[:2]
    host = socket.gethostname() if host in WILDCARDS else host
    return replace(config, replica=fitting(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
