"""The files of a repository that a model's name means, by llama.cpp's rules."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pyllmcancel.errors import HubError, UsageError
from pyllmcancel.parts import PART, part_names

PREFERRED = ("Q4_K_M", "Q8_0")  # if the name has no quantization
SUFFIX = ".gguf"
# Other GGUF files beside models: projectors for images, and companions for drafting.
NO_MODELS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
TAG = re.compile(r"[.-](\w+)$", re.ASCII)
QUANT = re.compile(r"(I?Q|TQ|B?F|MXFP|NVFP)\d")
SHOWN = 12  # limit of names in a message


@dataclass(frozen=True, slots=True)
class ModelName:
    """The model that ``--hf-repo`` and ``--hf-file`` name."""

    repo: str  # ``USER/MODEL``
    quant: str = ""  # the quantization as given
    file: str | None = None  # the path of a single file; None: chosen by `quant`

    @classmethod
    def parse(cls, text: str, file: str | None = None, option: str = "--hf-repo") -> ModelName:
        """Read ``USER/MODEL`` or ``USER/MODEL:QUANT``; UsageError, which names the option, for anything else."""
        repo, colon, quant = text.strip().partition(":")
        if not REPOSITORY.fullmatch(repo) or (colon and not re.fullmatch(r"[\w.-]+", quant)):
            raise UsageError(f"{option} must be USER/MODEL or USER/MODEL:QUANT, not {text!r}")
        return cls(repo, quant, file)

    def __str__(self) -> str:
        return self.repo + (f":{self.quant}" if self.quant else "")

    def choose(self, paths: Collection[str]) -> tuple[str, ...]:
        """Return the files to load, the first part of a divided model before the others; HubError if there is none."""
        if self.file is not None:
            if self.file not in paths:
                raise HubError(f"{self.repo} has no file {self.file}; it has {_some(_ggufs(paths))}")
            return parts_of(self.file, paths)
        models = list(model_files(paths))
        for quant in (self.quant,) if self.quant else PREFERRED:
            found = _of_quant(models, quant)
            if found is not None:
                return parts_of(found, paths)
        if not models:
            raise HubError(f"{self.repo} has no GGUF file of a model; it has {_some(paths)}")
        if self.quant:
            raise HubError(f"{self.repo} has no {self.quant}; it has {_some(dict.fromkeys(map(tag_of, models)))}")
        return parts_of(models[0], paths)


def model_files(paths: Iterable[str]) -> Iterable[str]:
    """Return the files of models; of a divided one the first."""
    for path in _ggufs(paths):
        part = PART.fullmatch(path)
        name = path.rpartition("/")[2].lower()
        if not any(word in name for word in NO_MODELS) and (part is None or int(part["index"]) == 1):
            yield path


def projector_of(model: str, paths: Iterable[str]) -> str | None:
    """Return the projector that belongs to a model's file, by llama.cpp's rule; None if there is none.

    It lies in the model's folder, or in one above it, the nearest first. Of several, the one whose quantization has the
    most similar number of bits is taken.
    """
    folder = model.split("/")[:-1]
    found = []
    for path in _ggufs(paths):
        own = path.split("/")[:-1]
        if "mmproj" in path and folder[: len(own)] == own:
            found.append((-len(own), abs(_bits_of(path) - _bits_of(model)), path))
    return min(found, key=lambda one: one[:2])[2] if found else None


def _bits_of(path: str) -> int:
    number = re.search(r"\d+", tag_of(path))
    return int(number[0]) if number else 0


def parts_of(path: str, paths: Collection[str]) -> tuple[str, ...]:
    """Return a file and the other parts of its model, in their order; HubError if one is missing."""
    names = part_names(path)
    missing = [name for name in names if name not in paths]
    if missing:
        raise HubError(f"{path} is one of {len(names)} parts, of which {_some(missing)} are missing")
    return names


def tag_of(path: str) -> str:
    """Return the last word of a file's name, usually the quantization, in capitals; empty if it has only one."""
    part = PART.fullmatch(path)
    found = TAG.search(part["whole"] if part else path[: -len(SUFFIX)])
    return found[1].upper() if found else ""


def quant_of(path: str) -> str:
    """Return the quantization in a file's name; empty if there is none."""
    tag = tag_of(path)
    return tag if QUANT.match(tag) else ""


def _ggufs(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.lower().endswith(SUFFIX)]


def _of_quant(models: Iterable[str], quant: str) -> str | None:
    """Return the first file with the quantization in its name; a name in which it begins a word comes before others.

    llama.cpp takes the first of either kind, so that F16 may find BF16.
    """
    models = list(models)
    for pattern in (rf"(?<![A-Za-z0-9]){re.escape(quant)}[.-]", rf"{re.escape(quant)}[.-]"):
        for path in models:
            if re.search(pattern, path, re.IGNORECASE):
                return path
    return None


def _some(names: Iterable[str]) -> str:
    names = [name for name in names if name]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more or "no such file"
