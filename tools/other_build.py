"""A build of the package beside the one that is developed: for tests that need another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from bench.environment import make_environment  # noqa: E402 - found by the line above

BUILDS = ROOT / "build"


def install(name: str, objects: str, *options: str) -> Path:
    """Install the package, built in ``build/OBJECTS``, into the environment ``build/venv-NAME``; returns its Python.

    The directory of objects lies as deep as that of the package's own build: to ccache paths are relative, so it finds
    what that one compiled.
    """
    python = make_environment(BUILDS / f"venv-{name}")
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--force-reinstall")
    # The compilers give way to tests that run beside them.
    command = ["nice", "-n", "5", *pip, f"--config-settings=build-dir={BUILDS / objects}", *options, str(ROOT)]
    subprocess.run(command, check=True)
    return python
