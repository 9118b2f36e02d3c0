"""The training text: the sources of the running Python's standard library."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE = 0.05

# Not library code, or text whose regularity teaches a small model nothing: third-party packages, test suites,
# IDLE's dated help pages, and folders that are named after the machine that Python was built on.
_EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
_EXCLUDED_PREFIXES = ("config-",)
_EXCLUDED_FILES = {"pydoc_data/topics.py"}

# Build settings of the one machine: its folders must not reach a published model.
_MACHINE_FILES = "_sysconfigdata"

_GENERATED_MARKS = ("generated from '", "Python Character Mapping Codec")


@dataclass(slots=True, frozen=True)
class SourceFile:
    r"""One file of the library.

    Attributes
    ----------
    path
        Relative to the library's root, with forward slashes.
    text
        Decoded as UTF-8, line ends as `\n`.
    """

    path: str
    text: str

    @property
    def held_out(self) -> bool:
        """True if the file is kept for evaluation.

        Decided by a hash of the path alone, so that the split is the same on every machine and for every version.
        """
        digest = hashlib.sha256(self.path.encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < HELD_OUT_SHARE


def _wanted(relative: Path) -> bool:
    folders = relative.parts[:-1]
    if any(part in _EXCLUDED_FOLDERS or part.startswith(_EXCLUDED_PREFIXES) for part in folders):
        return False
    return relative.as_posix() not in _EXCLUDED_FILES and not relative.name.startswith(_MACHINE_FILES)


def collect(root: Path | None = None) -> list[SourceFile]:
    """Read the library's source files.

    Parameters
    ----------
    root
        Folder of the standard library; the running Python's by default.

    Returns
    -------
    list of SourceFile
        Sorted by path: the order must not depend on the file system, since training resumes by position.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    files = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not _wanted(relative):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip() and not any(mark in text[:400] for mark in _GENERATED_MARKS):
            files.append(SourceFile(relative.as_posix(), text))
    return files


def split(files: list[SourceFile]) -> tuple[list[SourceFile], list[SourceFile]]:
    """Divide files into those to train on and those held out."""
    return [f for f in files if not f.held_out], [f for f in files if f.held_out]
