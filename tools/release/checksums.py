"""Checksums, in the form that ``sha256sum --check`` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

FILE = "SHA256SUMS"


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def lines(paths: Iterable[Path]) -> str:
    return "".join(f"{sha256(path)}  {path.name}\n" for path in sorted(paths, key=lambda path: path.name))


def write(folder: Path) -> Path:
    """Write the checksums of all files in `folder` into a file beside them."""
    sums = folder / FILE
    sums.write_text(lines(path for path in folder.iterdir() if path != sums))
    return sums
