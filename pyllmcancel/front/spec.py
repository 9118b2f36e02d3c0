"""The models that can be asked for, and where they come from."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pyllmcancel.errors import UsageError
from pyllmcancel.parts import PART, files_of

PROJECTOR = "mmproj"  # llama.cpp's files for pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One model that can be asked for."""

    name: str  # its id in requests
    path: Path | None  # its file; None: it is fetched by its process, from the hub or by a known name
    options: tuple[str, ...]  # of its process, the model's own among them
    aliases: tuple[str, ...] = ()  # further names
    pinned: bool = False  # it is loaded at the start, and never gives way
    starts: bool = False  # it is loaded at the start
    idle_after: float = math.inf  # the seconds without a request after which it is unloaded
    replicas: int = 1  # the number of its processes here; 0: only workers elsewhere serve it
    number: int = 1  # which of them this is, from 1 on, where one is meant

    @property
    def worker(self) -> str:
        """The name of its process: that of the model, but for further replicas."""
        return self.name if self.number == 1 else f"{self.name}:{self.number}"

    @property
    def workers(self) -> list[Spec]:
        """Each of its processes."""
        return [replace(self, number=number) for number in range(1, self.replicas + 1)]

    @property
    def replica(self) -> str:
        return replica_of(self.worker)

    @property
    def files(self) -> list[os.stat_result]:
        """The facts of those of its files that are here."""
        found = []
        for path in () if self.path is None else files_of(self.path):
            with suppress(OSError):
                found.append(path.stat())
        return found

    @property
    def size(self) -> int:
        """The bytes of its files that are here."""
        return sum(one.st_size for one in self.files)


Command = Callable[[Spec, Path], tuple[Sequence[str], Mapping[str, str]]]
"""Makes the command of one of a model's processes, and the variables to add to its environment."""


def fitting(text: str) -> str:
    """Return a name that headers can carry, made of another one."""
    return re.sub(r"[^A-Za-z0-9_.:\[\]-]", "-", text)[:128]


def replica_of(worker: str) -> str:
    """Return a process' name in headers and names of files: its own if that fits, or else one that no other has."""
    name = fitting(worker)
    if name == worker and name[0] != "-":
        return name
    unique = hashlib.sha256(worker.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{name.strip('-')[:64] or 'model'}-{unique}"


class Catalog:
    """Models by their names. UsageError if two models, or a model and another one's process, have the same name.

    `check` raises OSError or UsageError if a file is obviously no model.
    """

    def __init__(self, specs: Iterable[Spec], check: Callable[[Path], None] = lambda _path: None) -> None:
        self.specs: dict[str, Spec] = {}
        self._names: dict[str, str] = {}
        self._remote: dict[str, list[str]] = {}  # the names of models that workers elsewhere serve
        self.workers: dict[str, Spec] = {}  # each process of each model, by its name
        for spec in merged(specs):
            if spec.name in self.specs:
                where = " and ".join(str(one.path or one.name) for one in (self.specs[spec.name], spec))
                advice = "a section of --models-preset gives one of them another name"
                raise UsageError(f"two models are called {spec.name}: {where}; {advice}")
            self._add(spec)
        # The first one whose file is a model's, or is not here yet; the first one if there is none.
        self.default = next(iter(self.specs.values()), None)
        self.passed_over: list[str] = []  # the reasons why those before it are no default
        for spec in self.specs.values():
            try:
                if spec.path is not None:
                    check(spec.path)
            except (OSError, UsageError) as error:
                self.passed_over.append(f"{spec.name} is not the default model: {error}")
            else:
                self.default = spec
                break

    def _add(self, spec: Spec) -> None:
        for worker in spec.workers:
            if (other := self.workers.get(worker.worker)) is not None:
                several = spec if worker.number > 1 else other
                raise UsageError(f"a model is called {worker.worker}, as a replica of {several.name} would be")
        self.specs[spec.name] = spec
        self.workers |= {worker.worker: worker for worker in spec.workers}
        for name in (spec.name, *spec.aliases):
            self._names.setdefault(name, spec.name)

    def add_new(self, other: Catalog) -> None:
        """Add the models of a later list that are not in this one."""
        for spec in other.specs.values():
            if spec.name not in self.specs:
                self._add(spec)
        self.default = self.default or other.default

    def serve(self, names: Sequence[str]) -> Spec:
        """Return the model of these names, which a worker elsewhere serves; the first one is its id."""
        name = names[0]
        self._remote[name] = list(names)
        spec = self.specs.setdefault(name, Spec(name=name, path=None, options=(), aliases=tuple(names[1:]), replicas=0))
        for one in names:
            self._names.setdefault(one, name)
        self.default = self.default or spec
        return spec

    def serve_all_of(self, other: Catalog) -> None:
        """Have the models that workers elsewhere serve by a former list."""
        for names in other._remote.values():
            self.serve(names)

    def find(self, name: str) -> Spec | None:
        """Return the model of this name, or alias."""
        return self.specs.get(self._names.get(name, name))


def merged(specs: Iterable[Spec]) -> Iterator[Spec]:
    """Iterate over the models; of two with the same file and the same options, the second is a name of the first."""
    found: dict[object, Spec] = {}
    for spec in specs:
        options = tuple(one for one in spec.options if not one.startswith("--model="))
        key: object = spec.name if spec.path is None else (spec.path.resolve(), options)
        first = found.get(key)
        if first is None:
            found[key] = spec
        elif first.name != spec.name:
            found[key] = replace(first, aliases=tuple(dict.fromkeys((*first.aliases, spec.name, *spec.aliases))))
    yield from found.values()


def models_in(folder: Path) -> list[tuple[str, Path]]:
    """Return the names and files of the models in a folder, as llama-server finds them: each GGUF file, and each folder
    that has one, or the parts of one.

    Raises OSError if it cannot be read.
    """
    found: list[tuple[str, Path]] = []
    for entry in sorted(folder.iterdir()):
        if is_model(entry):
            part = PART.fullmatch(entry.name)
            found.append((part["whole"] if part else entry.stem, entry))
        elif entry.is_dir():
            first = next((one for one in sorted(entry.iterdir()) if is_model(one)), None)
            if first is not None:
                found.append((entry.name, first))
    return found


def is_model(path: Path) -> bool:
    """Return whether the file is that of a model, or the first of its parts."""
    part = PART.fullmatch(path.name)
    is_first = part is None or int(part["index"]) == 1
    return path.suffix.lower() == ".gguf" and is_first and not path.name.startswith(PROJECTOR) and path.is_file()
