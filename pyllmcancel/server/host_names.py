"""Names of a server: what the header ``Host`` may say where no key is asked for.

A web page of ``evil.example`` may have the DNS say that its host is 127.0.0.1. To the browser this server is then the
page's own, and only ``Host`` tells that the page believes to speak to ``evil.example``. An address, and ``localhost``,
are nobody's to give away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

EVERY = "*"
ANY_BELOW = "*."
# The two addresses are what most clients ask for: they are found without being parsed.
LOCAL = ("localhost", "*.localhost", "127.0.0.1", "::1")
# A name, or an address in brackets, and a port.
AUTHORITY = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:@/\\?#,\s]+))(?::[0-9]*)?")


class HostNames:
    """Has what is one of the names, with any port, and every address.

    Parameters
    ----------
    names
        Host names, and ``*.NAME`` for every name that ends so; those of `LOCAL` need not be named.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = {name.lower().removesuffix(".") for name in (*LOCAL, *names)}
        self._names = frozenset(known)
        self._endings = tuple(name.removeprefix("*") for name in known if name.startswith(ANY_BELOW))

    def __contains__(self, authority: str) -> bool:
        name = name_in(authority)
        return name is not None and (name in self._names or name.endswith(self._endings) or is_address(name))


def name_in(authority: str) -> str | None:
    """The host, without its port, in lower case and without the dot that may end it; None if it is malformed."""
    found = AUTHORITY.fullmatch(authority)
    return None if found is None else (found[1] or found[2]).lower().removesuffix(".")


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def host_name(text: str) -> str:
    """A name as browsers send it; ValueError for what can be none."""
    if text == EVERY:
        return text
    below = ANY_BELOW if text.startswith(ANY_BELOW) else ""
    name = text.removeprefix(below)
    if is_address(name):
        return name
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError(f"must be host names, without scheme and port, or *.NAME, or *; not {text!r}")
    return below + name.encode("idna").decode()
