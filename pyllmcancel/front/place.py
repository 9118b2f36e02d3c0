"""Addresses of workers and fronts. Cheap to import: the command line reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyllmcancel.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

DNS = "dns"


@dataclass(frozen=True, slots=True)
class Place:
    """An address; with the scheme ``dns`` that of any number of servers, which have the addresses of the name."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *schemes: str) -> Place:
        """Return the address; UsageError if the text is none."""
        try:
            parts = urlsplit(text)
            port, host = parts.port, parts.hostname
        except ValueError:
            port, host = None, None
        if port and host and parts.scheme in schemes and text.rstrip("/").endswith(f":{port}") and "@" not in text:
            return cls(parts.scheme, host, port)
        forms = " or ".join(f"{scheme}://{'NAME' if scheme == DNS else 'HOST'}:PORT" for scheme in schemes)
        raise UsageError(f"this address must be {forms}, not {text!r}")


@dataclass(frozen=True, slots=True)
class FrontAddress:
    """Where a worker registers itself."""

    place: Place
    own: str | None = None  # the worker's own address, if it is not the one from which it registers
    ca: Path | None = None  # the file of certificates by which the front's is checked; None: the system's
