"""Origins of web pages: which ones may use the server, and which page is the server's own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

EVERY = "*"
LOCAL = "localhost"
# The origin of a page that has none, such as a file or a sandboxed page.
OPAQUE = "null"
LOCAL_PATTERN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"
# `SCHEME://*` means every page of a scheme: an editor's web view has another name each time.
ANY_OF_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://\*")
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]*")
DEFAULT_PORTS = {"http": 80, "https": 443}


class AllowedOrigins:
    """The set of the origins that are named as `web_origin` returns them: `all`, or, for Starlette's CORS layer, those
    that are `exact` or match the `pattern`.
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
    """Return an origin as browsers send it, or a word for several; ValueError if it is neither."""
    origin = text.lower().removesuffix("/") if not text.endswith("://") else text.lower()
    if origin in (EVERY, LOCAL, OPAQUE) or ORIGIN.fullmatch(origin):
        return origin
    raise ValueError(f"must be origins like https://page.example, or SCHEME://*, localhost, null or *; not {text!r}")


def is_own(origin: str, host: str, *, secure: bool) -> bool:
    """Return whether a page of `origin` is one of the server that was asked as `host`, the value of that header.

    Without a port the default one of the origin's scheme counts: a proxy in front may speak HTTPS. If the request was
    `secure`, a page that came without HTTPS is another's.
    """
    page = _place(origin)
    if page is None or (secure and page[0] != "https"):
        return False
    return page == _place(f"{page[0]}://{host}")


def _place(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; None if the origin is not HTTP."""
    try:
        parts = urlsplit(url)
        scheme, name, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        return None
    if scheme not in DEFAULT_PORTS or not name or parts.username is not None:
        return None
    return scheme, name.removesuffix("."), DEFAULT_PORTS[scheme] if port is None else port
