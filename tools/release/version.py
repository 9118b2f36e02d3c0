"""The version: ``pyproject.toml`` has it, and a few recipes name it, which are written with it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .commands import ReleaseError

# File and text, in which {} is the version.
PLACES = (
    ("pyproject.toml", 'version = "{}"\n'),
    ("deploy/Containerfile", "pyllmcancel:{}"),
    ("deploy/Containerfile", "dist/{}"),
    ("deploy/kubernetes/server.yaml", "pyllmcancel:{}"),
    ("docs/deploying.md", "pyllmcancel:{}"),
    ("docs/deploying.md", "dist/{}"),
    ("docs/deploying.md", "python -m tools.release {}"),
)


def current(root: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return str(project["version"])


def check(new: str, current: str, tags: list[str]) -> None:
    """Check that `new` can follow the version in the checkout and those that have tags; ReleaseError if it cannot."""
    try:
        version = Version(new)
    except InvalidVersion:
        raise ReleaseError(f"{new} is no version; 1.2.3 and 1.2.3rc1 are") from None
    if str(version) != new or version.is_devrelease or version.local is not None or len(version.release) != 3:
        raise ReleaseError(f"{new} is not written like 1.2.3 or 1.2.3rc1")
    if version < Version(current):
        raise ReleaseError(f"{new} is older than {current}, the version in pyproject.toml")
    released = [Version(tag[1:]) for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+(rc\d+)?", tag)]
    if released and version <= max(released):
        raise ReleaseError(f"{new} does not follow {max(released)}, which has a tag")


def write(root: Path, new: str) -> list[str]:
    """Write the version into all files of `PLACES`; returns the files of the places that changed."""
    old = current(root)
    changed = []
    for name, template in PLACES:
        path = root / name
        text = path.read_text("utf-8")
        if template.format(old) not in text:
            raise ReleaseError(f"{name} does not have {template.format(old).strip()}")
        if new != old:
            path.write_text(text.replace(template.format(old), template.format(new)), "utf-8")
            changed.append(name)
    return changed
