"""From a model's name to its file in the hub's cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyllmcancel.errors import HubError, HubUnreachable
from pyllmcancel.hub.background import Fetch, cannot_be_stored, fetched
from pyllmcancel.hub.cache import Repository
from pyllmcancel.hub.client import Hub, HubFile
from pyllmcancel.hub.download import Download
from pyllmcancel.hub.names import ModelName, projector_of
from pyllmcancel.hub.progress import in_units

logger = logging.getLogger("pyllmcancel.hub")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub.

    Attributes
    ----------
    name
        The model's name.
    token
        As for `Hub`.
    offline
        Use the cache only, without asking the hub.
    endpoint
        The hub's address; None: that of ``HF_ENDPOINT``, or else huggingface.co.
    """

    name: ModelName
    token: str | None = None
    offline: bool = False
    endpoint: str | None = None

    def fetch(self, progress: Callable[[float], bool]) -> Path:
        """Return the file to load, downloaded first if need be; see `fetched`."""
        return fetched(_Fetch(self), str(self.name), progress)

    def fetch_projector(self, progress: Callable[[float], bool]) -> Path | None:
        """Return the file of the model's projector in the same way; None if the model has none. `fetch` comes first."""
        fetch = _FetchProjector(self)
        try:
            return fetched(fetch, f"the projector of {self.name}", progress)
        except _NoProjectorError:
            return None


class _Fetch(Fetch):
    """Fetches a model of the hub."""

    def __init__(self, model: HubModel) -> None:
        super().__init__()
        self._model = model
        self._name = model.name
        self._repository = Repository(model.name.repo)

    def find(self) -> Path:
        if self._model.offline:
            return self._cached("--offline")
        try:
            return self._download()
        except HubUnreachable as error:
            return self._cached(str(error))
        except _NoProjectorError:
            raise
        except (HubError, OSError) as error:
            if self._in_cache() is None:
                raise
            why = cannot_be_stored(error) if isinstance(error, OSError) else error
            raise HubError(f"{why}. A copy is in the cache: --offline serves it") from error

    def _in_cache(self) -> Path | None:
        return self._repository.find(self._name)

    def _cached(self, why: str) -> Path:
        path = self._in_cache()
        if path is None:
            raise HubError(f"{why}; and {self._name} is not in the cache, {self._repository.folder}")
        logger.info("%s: serving %s from the cache, without a check for a newer one (%s)", self._name, path.name, why)
        return path

    def _download(self) -> Path:
        hub = Hub(self._model.token, endpoint=self._model.endpoint)
        with self.asking(hub.endpoint):
            commit = hub.latest(self._name.repo)
        files = [commit.files[path] for path in self._choose(commit.files)]
        self._total = sum(file.size for file in files)
        missing = [file for file in files if not self._repository.blob(file.etag).exists()]
        if missing:
            parts = f" and {len(files) - 1} more parts" if len(files) > 1 else ""
            logger.info("downloading %s%s of %s: %s", files[0].path, parts, self._name, in_units(self._total))
        found = [self._get(hub, commit.id, file) for file in files]
        self._repository.set_main(commit.id)
        if not missing:
            logger.info("%s: %s is in the cache, and is the newest", self._name, found[0].name)
        return found[0]

    def _choose(self, paths: Collection[str]) -> tuple[str, ...]:
        return self._name.choose(paths)

    def _get(self, hub: Hub, commit: str, file: HubFile) -> Path:
        on_size = self.on_size(file.path)
        blob = self._repository.blob(file.etag)
        with self._repository.locked(file.etag):
            if not blob.exists():
                content = partial(hub.content, self._repository.repo, commit, file)
                with self.asking(hub.endpoint):
                    Download(content, file, blob, on_size=on_size, given_up=self.given_up).run()
        on_size(file.size)
        return self._repository.install(commit, file.path, file.etag)


class _NoProjectorError(HubError):
    """The model has no projector."""


class _FetchProjector(_Fetch):
    """Fetches the projector that lies beside a model."""

    def _choose(self, paths: Collection[str]) -> tuple[str, ...]:
        found = projector_of(self._name.choose(paths)[0], paths)
        if found is None:
            raise _NoProjectorError(f"{self._name} has no projector")
        return (found,)

    def _in_cache(self) -> Path | None:
        model = super()._in_cache()
        return None if model is None else self._repository.find_projector(model)

    def _cached(self, why: str) -> Path:
        if self._in_cache() is None:
            raise _NoProjectorError(f"{self._name} has no projector in the cache")
        return super()._cached(why)
