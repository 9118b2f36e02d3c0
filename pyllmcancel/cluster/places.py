"""Replicas and balancers: their names and addresses."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyllmcancel.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
HOST = re.compile(r"\*|[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+")
MAX_REPLICAS = 64  # a request goes through some ten rules for each


@dataclass(frozen=True, slots=True)
class Replica:
    """A server.

    Attributes
    ----------
    id
        The number in HAProxy's tables. It is derived from the name, not from the place in a list, so that an added or
        removed replica changes no other's number.
    """

    name: str
    address: str

    @property
    def id(self) -> int:
        return zlib.crc32(self.name.encode()) >> 1 or 1

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Peer:
    """A balancer, and the address at which other balancers send it their tables of names."""

    name: str
    address: str


def named_replica(text: str) -> Replica:
    """Parse ``HOST:PORT``, or ``NAME=HOST:PORT``."""
    return Replica(*named_address(text, "--replica"))


def named_peer(text: str) -> Peer:
    """Parse ``NAME=HOST:PORT``."""
    if "=" not in text:
        raise UsageError(f"--peer must be NAME=HOST:PORT, not {text!r}")
    return Peer(*named_address(text, "--peer"))


def named_address(text: str, option: str) -> tuple[str, str]:
    name, separator, address = text.rpartition("=")
    found = ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65_536:
        raise UsageError(f"{option} must be HOST:PORT or NAME=HOST:PORT, not {text!r}")
    name = name if separator else re.sub(r"[^A-Za-z0-9_.-]+", "-", address).strip("-")
    if not NAME.fullmatch(name):
        raise UsageError(f"the name of a {option} must match {NAME.pattern}, not {name!r}")
    return name, address


def check_replicas(replicas: Sequence[Replica]) -> None:
    """Raise UsageError if there are none, too many, or two that could not be distinguished."""
    if not 0 < len(replicas) <= MAX_REPLICAS:
        raise UsageError(f"there must be 1 to {MAX_REPLICAS} replicas, not {len(replicas)}")
    for i, one in enumerate(replicas):
        for other in replicas[:i]:
            if one.name == other.name:
                raise UsageError(f"two replicas have the name {one.name}: {other.address} and {one.address}")
            if one.address == other.address:
                raise UsageError(f"{one.name} and {other.name} are one replica, {one.address}")
            if one.id == other.id:
                raise UsageError(f"the names {one.name} and {other.name} have the same checksum: choose another one")


def check_peers(peers: Sequence[Peer], here: str) -> None:
    names = [one.name for one in peers]
    if len(set(names)) < len(names) or len({one.address for one in peers}) < len(peers):
        raise UsageError("two balancers have the same name or address: each --peer needs its own")
    if here not in names:
        raise UsageError(f"--here {here} is none of the balancers: {', '.join(names)}")


def check_bind(host: str) -> None:
    for one in host.split(","):
        if not HOST.fullmatch(one.strip()):
            raise UsageError(f"--host must be addresses or names of this machine, separated by commas, not {host!r}")


def check_socket(path: Path | None) -> None:
    if path is not None and not re.fullmatch(r"/[^\s'\"\\\\]+", str(path)):
        raise UsageError(f"--socket must be an absolute path without blanks and quotes, not {str(path)!r}")
