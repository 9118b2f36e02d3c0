"""The identity of everything that the memory of a prefix depends on, besides its tokens.

A state in a file is restored for the same identity only.

The model's file is known by a hash of its whole content: neither its name, nor its size, nor samples of its tensors
tell two fine-tunings of a model apart. The hash is computed once for a file, and remembered beside what the system says
about the file. Every change of a file, even one that sets its times back, changes that.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pyllmcancel.models import packaged_model_path
from pyllmcancel.parts import files_of
from pyllmcancel.pausing import Pause, no_pause

if TYPE_CHECKING:
    from pyllmcancel._native import Context
    from pyllmcancel.config import EngineConfig

HASHES = "hashes.json"
MAX_HASHES = 64
AT_ONCE = 8 << 20  # bytes


def state_identity(context: Context, config: EngineConfig, native: Any, known: Path, pause: Pause = no_pause) -> str:
    """Return the identity, in 64 characters. Reads files that are not `known` yet, in a file; OSError if that fails.

    `pause` is called after every few MiB. Whatever it raises ends the call.
    """
    hashes = FileHashes(known, pause)
    model = Path(config.model or packaged_model_path())
    facts = {
        "model": [hashes.of(path) for path in files_of(model)],
        "adapters": [hashes.of(path) for path, _ in config.lora],  # a prefix has their numbers, and its scales
        "build": [hashes.of(Path(native.__file__)), native.cpu_variant(), sorted(native.kernel_features())],
        "devices": sorted(context.model.layers_by_device.items()),
        "memory": sorted(config.memory_options().items()),
        "cells": [context.memory_kind, context.kv_unified, context.n_ctx],
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class FileHashes:
    """The hashes of files, which are remembered in a file of their own."""

    def __init__(self, path: Path, pause: Pause = no_pause) -> None:
        self._path = path
        self._pause = pause
        self._known: dict[str, list[Any]] = {}  # by path: what the system says, and the hash; oldest first
        with suppress(OSError, ValueError):
            known = json.loads(path.read_text("utf-8"))
            if isinstance(known, dict):
                self._known = known

    def of(self, path: Path) -> str:
        """Return the hash of a file's content."""
        path = path.resolve()
        with path.open("rb") as file:
            facts = facts_of(os.fstat(file.fileno()))
            match self._known.get(str(path)):
                case [seen, str(digest)] if seen == facts:
                    return digest
            digest = self._digest(file)
        self._known.pop(str(path), None)
        self._known[str(path)] = [facts, digest]
        while len(self._known) > MAX_HASHES:
            del self._known[next(iter(self._known))]
        self._save()
        return digest

    def _digest(self, file: IO[bytes]) -> str:
        digest = hashlib.sha256()
        while piece := file.read(AT_ONCE):
            digest.update(piece)
            self._pause()
        return digest.hexdigest()

    def _save(self) -> None:
        """Remember; without that the files are read again at the next start."""
        temporary = self._path.with_suffix(".tmp")
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(self._known, file)
            temporary.replace(self._path)


def facts_of(status: os.stat_result) -> list[int]:
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
