"""``--peers``: where other replicas are. Light to import: the command line reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from pyllmcancel.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,128}")
SCHEMES = ("http", "https", "dns")


class Address(NamedTuple):
    """One ``--peers`` names; with ``dns`` any number of servers, whose addresses are those of the host."""

    scheme: str
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How a server finds its peers.

    Attributes
    ----------
    peers
        Of this server, too, where all have the same list: it recognises itself.
    name
        What the others call this server.
    key
        What peers must send; None: nothing.
    """

    peers: tuple[Address, ...]
    name: str
    key: str | None = None


def addresses(texts: Iterable[str]) -> tuple[Address, ...]:
    """UsageError for what is none, or is named twice."""
    found = tuple(address(text) for text in texts)
    for one in found:
        if found.count(one) > 1:
            raise UsageError(f"--peers names {one.url} twice")
    return found


def address(text: str) -> Address:
    form = "--peers must be http://HOST:PORT, https://HOST:PORT or dns://NAME:PORT, with commas"
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
    """UsageError for what cannot be the name of a replica."""
    if not NAME.fullmatch(text):
        raise UsageError(f"--replica must match {NAME.pattern}, not {text!r}")
    return text


def fitting(text: str) -> str:
    """A name, which headers can carry, made of a host's."""
    return re.sub(r"[^A-Za-z0-9_.:\[\]-]", "-", text)[:128]
