"""The files of a model that is divided into parts, by llama.cpp's names."""

from __future__ import annotations

import re
from pathlib import Path

PART = re.compile(r"(?P<whole>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


def part_names(name: str) -> tuple[str, ...]:
    """Return the names of all files of a model of which one is given."""
    part = PART.fullmatch(name)
    if part is None:
        return (name,)
    return tuple(f"{part['whole']}-{i:05}-of-{part['count']}.gguf" for i in range(1, int(part["count"]) + 1))


def files_of(path: Path) -> list[Path]:
    """Return the files of a model: one, or all parts."""
    return [path.with_name(name) for name in part_names(path.name)]
