"""Fronts and workers on several machines."""

from __future__ import annotations

import argparse
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyllmcancel.cli.options import add_list, add_option
from pyllmcancel.errors import UsageError
from pyllmcancel.front.place import DNS, FrontAddress, Place
from pyllmcancel.front.spec import fitting
from pyllmcancel.server.http.listening import is_unix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyllmcancel.server.config import ServerConfig
    from pyllmcancel.server.http.listening import Listener

HTTP = ("http", "https")
ANY = "any"
NAME = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,128}")
WILDCARDS = ("0.0.0.0", "::")


def add_worker_options(group: argparse._ArgumentGroup) -> None:
    text = "workers on other machines, whose models this front serves: http://HOST:PORT, https://HOST:PORT,"
    text += " dns://NAME:PORT for all addresses of a name, separated by commas; any: those that register themselves"
    add_list(group, "workers", str, text, metavar="URLS")
    text = "front at which this server registers itself as a worker: http://HOST:PORT or https://HOST:PORT"
    add_option(group, "worker", str, None, text, metavar="URL")
    text = "address at which that front reaches this worker [the one from which it registers, with its port]"
    add_option(group, "worker-url", str, None, text, metavar="URL")
    text = "name of this server in lists and in X-Served-By [HOST:PORT of a worker; of other servers no header]"
    add_option(group, "replica", replica_name, None, text, metavar="NAME")
    text = "file of the key by which a front and its workers know each other"
    add_option(group, "worker-key", Path, None, text, metavar="FILE")
    text = "PEM file of the certificates that workers and fronts with https:// are checked by [the system's]"
    add_option(group, "worker-ca", Path, None, text, metavar="FILE")


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


def replica_name(text: str) -> str:
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must match {NAME.pattern}, not {text!r}")
    return text


def named(config: ServerConfig, listeners: Sequence[Listener]) -> ServerConfig:
    """Return the settings with a name for this server, if it is a worker and was given no name."""
    if config.worker_key is None or config.replica is not None or is_unix(listeners[0]):
        return config
    host, port = listeners[0].getsockname()[:2]
    host = socket.gethostname() if host in WILDCARDS else host
    return replace(config, replica=fitting(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
