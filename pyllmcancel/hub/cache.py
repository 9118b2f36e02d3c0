"""The hub's cache on disk, in the layout that `huggingface_hub`, the `hf` command and llama.cpp share.

::

    models--USER--MODEL/blobs/ETAG                   a file's content; ETAG.incomplete while it is on its way
    models--USER--MODEL/snapshots/COMMIT/PATH        link to a blob
    models--USER--MODEL/refs/main                    the newest commit
    .locks/models--USER--MODEL/ETAG.lock             held by the process that downloads it
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pyllmcancel.errors import HubError
from pyllmcancel.hub.names import SUFFIX, ModelName, model_files, parts_of, projector_of, quant_of, tag_of
from pyllmcancel.system import lock

logger = logging.getLogger("pyllmcancel.hub")

PREFIX = "models--"


def cache_folder() -> Path:
    """Return the folder of `huggingface_hub`'s cache, by the variables that it reads."""
    home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{home}/huggingface")
    folder = os.environ.get("HF_HUB_CACHE", os.environ.get("HUGGINGFACE_HUB_CACHE", f"{home}/hub"))
    return Path(os.path.expandvars(folder)).expanduser()


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A cached model: the name to type after ``-hf``, and the path of its (first) file."""

    name: str
    quant: str
    path: Path
    size: int


class Repository:
    """One repository's part of the cache."""

    def __init__(self, repo: str) -> None:
        self.repo = repo
        cache, folder = cache_folder(), PREFIX + repo.replace("/", "--")
        self.folder = cache / folder
        self._locks = cache / ".locks" / folder

    def find(self, name: ModelName) -> Path | None:
        """Return the file to load, from the newest cached commit that has all files; None if none has."""
        for snapshot in self.snapshots():
            with suppress(HubError):
                return snapshot / name.choose(list(_paths(snapshot)))[0]
        return None

    def find_projector(self, model: Path) -> Path | None:
        """Return the projector that belongs to a model's cached file, if it is in the cache."""
        for snapshot in self.snapshots():
            if model.is_relative_to(snapshot):
                found = projector_of(model.relative_to(snapshot).as_posix(), _paths(snapshot))
                return None if found is None else snapshot / found
        return None

    def snapshots(self) -> list[Path]:
        """Return the folders of commits with cached files: that of ``main`` first, the others by age."""
        main = self.folder / "refs" / "main"
        newest = main.read_text("utf-8").strip() if main.is_file() else ""
        with suppress(FileNotFoundError):
            found = [path for path in (self.folder / "snapshots").iterdir() if path.is_dir()]
            return sorted(found, key=lambda path: (path.name != newest, -path.stat().st_mtime))
        return []

    def models(self) -> Iterator[CachedModel]:
        """Yield the complete models, each from the newest commit that has it."""
        seen = set[str]()
        for snapshot in self.snapshots():
            paths = list(_paths(snapshot))
            for path in model_files(paths):
                with suppress(HubError):
                    size = sum((snapshot / part).stat().st_size for part in parts_of(path, paths))
                    if path not in seen:
                        yield CachedModel(self._name_of(path, paths), quant_of(path), snapshot / path, size)
                        seen.add(path)

    def remove(self, path: str) -> None:
        """Delete a model's file, all parts, from every commit, with blobs that nothing else links to."""
        for snapshot in self.snapshots():
            paths = list(_paths(snapshot))
            for part in parts_of(path, paths) if path in paths else ():
                pointer = snapshot / part
                blob = pointer.resolve()
                pointer.unlink()
                if blob.parent == (self.folder / "blobs").resolve() and not self._is_linked(blob):
                    blob.unlink()

    def _is_linked(self, blob: Path) -> bool:
        links = (path for path in (self.folder / "snapshots").rglob("*") if path.is_symlink())
        return any(link.resolve() == blob for link in links)

    def _name_of(self, path: str, paths: list[str]) -> str:
        name = ModelName(self.repo, tag_of(path))
        return str(name) if name.choose(paths)[0] == path else f"{self.repo} --hf-file {path}"

    def blob(self, etag: str) -> Path:
        return self.folder / "blobs" / etag

    def install(self, commit: str, path: str, etag: str) -> Path:
        """Make the blob available as `path` of the commit."""
        pointer = self.folder / "snapshots" / commit / PurePosixPath(path)
        if not pointer.exists():
            pointer.parent.mkdir(parents=True, exist_ok=True)
            pointer.unlink(missing_ok=True)  # a link that leads nowhere
            blob = self.blob(etag)
            try:
                pointer.symlink_to(os.path.relpath(blob, pointer.parent))
            except OSError:  # a file system without links: `huggingface_hub` moves the file, too
                blob.replace(pointer)
        return pointer

    def set_main(self, commit: str) -> None:
        main = self.folder / "refs" / "main"
        main.parent.mkdir(parents=True, exist_ok=True)
        main.write_text(commit, "utf-8")

    @contextmanager
    def locked(self, etag: str) -> Iterator[None]:
        """Wait until no other process downloads it; the kernel releases the lock when a process ends."""
        self._locks.mkdir(parents=True, exist_ok=True)
        with (self._locks / f"{etag}.lock").open("w") as file:
            lock(file, lambda: logger.info("another process is downloading %s: waiting for it", self.repo))
            yield


def cached_models() -> list[CachedModel]:
    """Return all complete models of the cache, by name."""
    found = [model for folder in cache_folder().glob(f"{PREFIX}*--*") for model in repository_in(folder.name).models()]
    return sorted(found, key=lambda model: (model.name, model.path))


def remove(model: CachedModel) -> None:
    """Delete a cached model, as `cached_models` has it; OSError if that is impossible."""
    folder, _, _, *path = model.path.relative_to(cache_folder()).parts
    repository_in(folder).remove("/".join(path))


def repository_in(folder: str) -> Repository:
    return Repository(folder.removeprefix(PREFIX).replace("--", "/", 1))


def _paths(snapshot: Path) -> Iterator[str]:
    """Return the GGUF files of a commit whose content is there, in the hub's order."""
    for path in sorted(snapshot.rglob("*")):
        if path.suffix.lower() == SUFFIX and path.is_file():
            yield path.relative_to(snapshot).as_posix()
