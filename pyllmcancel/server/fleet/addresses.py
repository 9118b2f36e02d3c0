"""``--peers``: the addresses of other replicas. Cheap to import: the command line reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from pyllmcancel.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,128}")
UNIX = "unix"
SCHEMES = ("http", "https", "dns")


class Address(NamedTuple):
    """An address of ``--peers``; with ``dns`` any number of servers, whose addresses are those of the host; with
    ``unix`` those whose sockets are in a folder, the `host`.
    """

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        if self.scheme == UNIX:
            return f"{UNIX}://{self.host}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The settings by which a server finds its peers.

    Attributes
    ----------
    peers
        The addresses of peers. If all servers have the same list, it includes this server, which recognises itself.
    name
        This server's name among its peers.
    key
        The key that peers must send; None: no key.
    """

    peers: tuple[Address, ...]
    name: str
    key: str | None = None

    @property
    def folder(self) -> str | None:
        """The folder of the servers' sockets; None: they have addresses of their own."""
        return next((peer.host for peer in self.peers if peer.scheme == UNIX), None)


def addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    """Parse the addresses; UsageError for an invalid one, or one that is named twice."""
    found = tuple(address(text) for text in texts)
    for one in found:
        if found.count(one) > 1:
            raise UsageError(f"--peers names {one.url} twice")
    if len(found) > 1 and any(one.scheme == UNIX for one in found):
        raise UsageError("--peers unix:///FOLDER is the only address: it stands for all servers")
    return found


def address(text: str) -> Address:
    form = "--peers must be http://HOST:PORT, https://HOST:PORT or dns://NAME:PORT, separated by commas, or"
    form += " unix:///FOLDER"
    if text.startswith(f"{UNIX}:///"):
        return Address(UNIX, text.removeprefix(f"{UNIX}://"), 0)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise UsageError(f"{form}, not {text!r}") from None
    rest = parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme not in SCHEMES or not parts.hostname or not port or rest:
        raise UsageError(f"{form}, not {text!r}")
    return Address(parts.scheme, parts.hostname, port)


def checked_name(text: str) -> str:
    """Return the name; UsageError if it cannot be the name of a replica."""
    if not NAME.fullmatch(text):
        raise UsageError(f"--replica must match {NAME.pattern}, not {text!r}")
    return text


def fitting(text: str) -> str:
    """Return a name that headers can carry, made of a host's name."""
    return re.sub(r"[^A-Za-z0-9_.:\[\]-]", "-", text)[:128]
