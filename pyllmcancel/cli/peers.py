"""``--peers``: the other servers that this one works with."""

from __future__ import annotations

import socket
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pyllmcancel.cli.options import add_list, add_option
from pyllmcancel.errors import UsageError
from pyllmcancel.server.fleet.addresses import FleetSettings, addresses, checked_name, fitting
from pyllmcancel.server.http.listening import is_unix

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pyllmcancel.server.config import ServerConfig
    from pyllmcancel.server.http.listening import Listener

WILDCARDS = ("0.0.0.0", "::")
NEEDED = "httpx"


def add_peer_options(group: argparse._ArgumentGroup) -> None:
    text = "servers that supersede and cancel each other's requests: http://HOST:PORT, https:// or dns://NAME:PORT,"
    text += " separated by commas; this server may be among them; or unix:///FOLDER, those with sockets in a folder,"
    text += " which may serve different models; needs the extra [fleet]"
    add_list(group, "peers", str, text, metavar="URLS")
    text = "name of this server in lists and in X-Served-By [HOST:PORT with --peers; without peers, no header]"
    add_option(group, "replica", str, None, text, metavar="NAME")
    text = "key that peers send to each other; needed with --api-key, unless --peer-key-file is given"
    add_option(group, "peer-key", str, None, text, metavar="KEY")
    add_option(group, "peer-key-file", Path, None, "file that contains that key", metavar="FILE")


def has_library() -> bool:
    return find_spec(NEEDED) is not None


def fleet_settings(arguments: argparse.Namespace, *, asks_for_keys: bool) -> FleetSettings | None:
    """Return the fleet's settings.

    Raises UsageError or OSError if an option is invalid, or needs something that is missing.
    """
    name = "" if arguments.replica is None else checked_name(arguments.replica)
    key = peer_key(arguments)
    if not arguments.peers:
        if key is not None:
            raise UsageError("--peer-key and --peer-key-file need --peers: without peers nobody sends a peer key")
        return None
    if not has_library():
        raise UsageError(f"--peers needs {NEEDED}: pip install 'pyllmcancel[fleet]'")
    if asks_for_keys and key is None:
        raise UsageError(
            "with API keys, --peers needs --peer-key or --peer-key-file: a peer may cancel any owner's requests"
        )
    return FleetSettings(peers=addresses(arguments.peers), name=name, key=key)


def peer_key(arguments: argparse.Namespace) -> str | None:
    if arguments.peer_key_file is not None:
        if arguments.peer_key is not None:
            raise UsageError("--peer-key and --peer-key-file exclude each other")
        key, source = arguments.peer_key_file.read_text("utf-8-sig").strip(), "--peer-key-file"
    elif arguments.peer_key is not None:
        key, source = arguments.peer_key.strip(), "--peer-key"
    else:
        return None
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"{source} must be one line of ASCII characters, not empty")
    return str(key)


def named(config: ServerConfig, listeners: Sequence[Listener]) -> ServerConfig:
    """Return the settings with a name for this server, if it has peers and was given no name."""
    if config.fleet is None or config.fleet.name:
        return config
    if is_unix(listeners[0]):
        name = fitting(Path(listeners[0].getsockname()).stem)
    else:
        host, port = listeners[0].getsockname()[:2]
        if host in WILDCARDS:
            host = socket.gethostname()
        name = fitting(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return replace(config, fleet=replace(config.fleet, name=name), replica=name)
