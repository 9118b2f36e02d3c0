"""Origins of web pages: which of them may use the server, and whether a page is the server's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

EVERY = "*"
LOCAL = "localhost"
# What a page without an origin has, as one in a file or a sandbox.
OPAQUE = "null"
LOCAL_PATTERN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
# `SCHEME://*` stands for every page of a scheme: a web view of an editor has another name each time.
ANY_OF_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://\*")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]*")
DEFAULT_PORTS = {"http": 80, "https": 443}


class AllowedOrigins:
    """Has the origins that are named.

    Parameters
    ----------
    named
        As `web_origin` gives them.

    Attributes
    ----------
    all
        Every origin is in it.
    exact, pattern
        What is in it, for Starlette's CORS layer.
    """

    def __init__(self, named: Iterable[str]) -> None:
        words = frozenset(named)
        self.all = EVERY in words
        schemes = [re.escape(found[1]) for found in map(ANY_OF_SCHEME.fullmatch, sorted(words)) if found]
        patterns = [rf"({'|'.join(schemes)})://.*"] if schemes else []
        patterns += [LOCAL_PATTERN] if LOCAL in words else []
        self.exact = frozenset(word for word in words if word != LOCAL and not ANY_OF_SCHEME.fullmatch(word))
        self.pattern = "|".join(patterns) or None
        self._compiled = None if self.pattern is None else re.compile(self.pattern)

    def __contains__(self, origin: str) -> bool:
        if self.all or origin in self.exact:
            return True
        return self._compiled is not None and self._compiled.fullmatch(origin) is not None


def web_origin(text: str) -> str:
    """An origin as browsers send it, or a word for several; ValueError for what is neither."""
    origin = text.lower().removesuffix("/") if not text.endswith("://") else text.lower()
    if origin in (EVERY, LOCAL, OPAQUE) or ORIGIN.fullmatch(origin):
        return origin
    raise ValueError(f"must be origins like https://page.example, or SCHEME://*, localhost, null or *; not {text!r}")


def is_own(origin: str, host: str, *, secure: bool) -> bool:
    """Return whether a page of `origin` is one of the server that was asked as `host`.

    Parameters
    ----------
    host
        As the header of this name has it. A port that it does not name is the default one of the origin's scheme: in
        front of this server a proxy may speak HTTPS.
    secure
        The server itself was asked by HTTPS: a page that came without it is another's.
    """
    page = _place(origin)
    if page is None or (secure and page[0] != "https"):
        return False
    return page == _place(f"{page[0]}://{host}")


def _place(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None of what is no HTTP."""
    try:
        parts = urlsplit(url)
        scheme, name, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        return None
    if scheme not in DEFAULT_PORTS or not name or parts.username is not None:
        return None
    return scheme, name.removesuffix("."), DEFAULT_PORTS[scheme] if port is None else port
