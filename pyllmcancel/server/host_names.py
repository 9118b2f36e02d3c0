"""Names of a server: the values of ``Host`` that are allowed if no key is needed.

A web page of ``evil.example`` may have the DNS say that its host is 127.0.0.1. To the browser this server is then the
page's own, and only ``Host`` shows that the page was loaded from ``evil.example``. Addresses and ``localhost`` are
safe, because nobody can rebind them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

EVERY = "*"
ANY_BELOW = "*."
# Most clients ask for one of these two addresses, which are looked up without being parsed.
LOCAL = ("localhost", "*.localhost", "127.0.0.1", "::1")
# A name, or an address in brackets, and a port.
AUTHORITY = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:@/\\?#,\s]+))(?::[0-9]*)?")


class HostNames:
    """A set of host names, with any port, and of every address. ``*.NAME`` stands for every name with that ending, and
    those of `LOCAL` are always included.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = {name.lower().removesuffix(".") for name in (*LOCAL, *names)}
        self._names = frozenset(known)
        self._endings = tuple(name.removeprefix("*") for name in known if name.startswith(ANY_BELOW))

    def __contains__(self, authority: str) -> bool:
        name = name_in(authority)
        return name is not None and (name in self._names or name.endswith(self._endings) or is_address(name))


def name_in(authority: str) -> str | None:
    """Return the host without its port, in lower case and without a final dot; None if it is malformed."""
    found = AUTHORITY.fullmatch(authority)
    return None if found is None else (found[1] or found[2]).lower().removesuffix(".")


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def host_name(text: str) -> str:
    """Return a name as browsers send it; ValueError if it cannot be a host name."""
    if text == EVERY:
        return text
    below = ANY_BELOW if text.startswith(ANY_BELOW) else ""
    name = text.removeprefix(below)
    if is_address(name):
        return name
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"must be host names, without scheme and port, or *.NAME, or *; not {text!r}")
    return below + name.encode("idna").decode()
