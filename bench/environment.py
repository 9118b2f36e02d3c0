"""An environment beside the one that runs: for a build of the package that is tested or measured."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path


def make_environment(folder: Path) -> Path:
    """Make an environment that has this one's packages, editable installs excepted; returns its Python."""
    venv.create(folder, with_pip=False)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    # Editable installs are not lent: the .pth files of a folder that a .pth file names are not read.
    lent = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    (own / "lent.pth").write_text("".join(f"{path}\n" for path in lent))
    return folder / "bin" / "python"
