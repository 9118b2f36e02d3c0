"""A build of the package beside the one that is developed: for tests that need another one."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / "build"


def install(name: str, objects: str, *options: str) -> Path:
    """Install the package, built in ``build/OBJECTS``, into the environment ``build/venv-NAME``; returns its Python.

    Lends it this environment's packages, editable installs excepted. The directory of objects lies as deep as that of
    the package's own build: to ccache paths are relative, so it finds what that one compiled.
    """
    folder = BUILDS / f"venv-{name}"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Editable installs are not lent: the .pth files of a folder that a .pth file names are not read.
    lent = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (own / "lent.pth").write_text("".join(f"{path}\n" for path in lent))
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--force-reinstall")
    # The compilers give way to tests that run beside them.
    command = ["nice", "-n", "5", *pip, f"-Cbuild-dir={BUILDS / objects}", *options, str(ROOT)]
    subprocess.run(command, check=True)
    return python
