"""From a model's name to its file, in a daemon thread.

A thread that waits for a silent hub cannot be woken up. So the downloading thread is a daemon: a server that ends
abandons it in the middle of a file, and the next start resumes the download.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path

from pyllmcancel.errors import HubError, HubUnreachable, LoadCancelled
from pyllmcancel.hub.cache import Repository
from pyllmcancel.hub.client import Hub, HubFile
from pyllmcancel.hub.download import Download
from pyllmcancel.hub.names import ModelName
from pyllmcancel.hub.progress import in_units, shown

logger = logging.getLogger("pyllmcancel.hub")

TELL_EVERY_SECONDS = 0.1  # how often progress is shown, and asked whether to continue


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
        """Return the file to load, downloaded first if need be.

        Parameters
        ----------
        progress
            Called again and again with the progress in [0, 1]. Returning False gives up.

        Raises
        ------
        HubError
            There is no such model, or the download failed.
        LoadCancelled
            The download was given up; the bytes so far are kept, and the next download resumes.
        """
        fetch = _Fetch(self)
        threading.Thread(target=fetch.run, name="hub download", daemon=True).start()
        with shown(str(self.name)) as show:
            while not wait([fetch.future], TELL_EVERY_SECONDS).done:
                done, total = fetch.sizes()
                if total:
                    show(done, total)
                if not progress(done / total if total else 0.0):
                    fetch.given_up.set()
                    raise LoadCancelled("the download was given up")
        return fetch.future.result()


class _Fetch:
    """The work of the daemon thread. Only `sizes` and `given_up` are for other threads."""

    def __init__(self, model: HubModel) -> None:
        self._model = model
        self._name = model.name
        self._repository = Repository(model.name.repo)
        self._sizes: dict[str, int] = {}
        self._total = 0
        self.future: Future[Path] = Future()
        self.given_up = threading.Event()

    def sizes(self) -> tuple[int, int]:
        """The number of bytes that are there, and of all; (0, 0) until the latter is known."""
        return sum(self._sizes.copy().values()), self._total

    def run(self) -> None:
        try:
            self.future.set_result(self._find())
        except BaseException as error:
            # Any exception: the other thread waits for the future.
            self.future.set_exception(error)

    def _find(self) -> Path:
        if self._model.offline:
            return self._cached("--offline")
        try:
            return self._download()
        except HubUnreachable as error:
            return self._cached(str(error))
        except HubError as error:
            if self._repository.find(self._name) is None:
                raise
            raise HubError(f"{error}. A copy is in the cache: --offline serves it") from error

    def _cached(self, why: str) -> Path:
        path = self._repository.find(self._name)
        if path is None:
            raise HubError(f"{why}; and {self._name} is not in the cache, {self._repository.folder}")
        logger.info("%s: serving %s from the cache, without a check for a newer one (%s)", self._name, path.name, why)
        return path

    def _download(self) -> Path:
        hub = Hub(self._model.token, endpoint=self._model.endpoint)
        commit = hub.latest(self._name.repo)
        files = [commit.files[path] for path in self._name.choose(commit.files)]
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

    def _get(self, hub: Hub, commit: str, file: HubFile) -> Path:
        def on_size(size: int) -> None:
            self._sizes[file.path] = size

        return Download(hub, self._repository, commit, file, on_size=on_size, given_up=self.given_up).run()
