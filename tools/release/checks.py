"""Other projects' checks of what is to be published, and the environments in which the wheel is tried."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from .commands import ReleaseError, run

OLDEST = 11  # Python 3's second number in requires-python
# Older back ends than a release's own machine has: without registers beyond SSE2's, without AVX, without AVX-512.
TRIED_VARIANTS = ("x64", "sse42", "haswell")


def check_metadata(*artefacts: Path) -> None:
    """The description can be rendered, and no field is one that an index refuses."""
    run(sys.executable, "-m", "twine", "check", "--strict", *artefacts, cwd=artefacts[0].parent)


def check_limited_api(wheel: Path) -> None:
    """The limited API is all that the module uses, and no other version's."""
    run(sys.executable, "-m", "abi3audit", "--strict", wheel, cwd=wheel.parent)


def platform_tag(wheel: Path) -> str:
    """Return the tag that auditwheel finds; ReleaseError if the wheel's name promises an older Linux."""
    said = run(sys.executable, "-m", "auditwheel", "show", wheel, cwd=wheel.parent)
    found = re.search(r'platform tag:\s+"(\S+)"', " ".join(said.split()))
    if found is None or found[1] not in wheel.name:
        raise ReleaseError(f"{wheel.name}: auditwheel says {said}")
    return found[1]


def interpreters() -> list[str]:
    """Return the oldest and the newest Python on the PATH for which the wheel is."""
    named = ((number, shutil.which(f"python3.{number}")) for number in range(OLDEST, 30))
    found = [path for _, path in named if path is not None]
    return [found[0], found[-1]] if len(found) > 1 else found


def try_installed(python: str, wheel: Path) -> dict[str, Any]:
    """Install and use the wheel in empty environments of `python`: with this processor's back end, and older ones."""
    root = Path(__file__).resolve().parents[2]
    command = (python, "-m", "tools.release.installed", wheel)
    found: dict[str, Any] = json.loads(run(*command, cwd=root).splitlines()[-1])
    for variant in TRIED_VARIANTS:
        run(*command, cwd=root, environment={"PYLLMCANCEL_CPU_VARIANT": variant})
    return found
