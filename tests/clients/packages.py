"""Where the clients come from: exact versions, from their registries, in a folder that git ignores."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "clients"


@dataclass(frozen=True, slots=True)
class Environment:
    """A client's packages, apart from other clients': they disagree about what they share.

    Parameters
    ----------
    tool
        ``pip`` or ``npm``; or ``here``, for what this Python has.
    pins
        Packages with their versions, as the tool takes them. The first is the client.
    """

    tool: str
    pins: tuple[str, ...]

    @property
    def version(self) -> str:
        return re.split("==|@", self.pins[0])[-1]

    @property
    def folder(self) -> Path:
        return FOLDER / re.sub(r"\W+", "-", "_".join((self.tool, *self.pins)))

    @property
    def programs(self) -> Path:
        return self.folder / ("bin" if self.tool == "pip" else "node_modules/.bin")

    @property
    def interpreter(self) -> str:
        if self.tool == "here":
            return sys.executable
        if self.tool == "pip":
            return str(self.programs / "python")
        return shutil.which("node") or "node"

    @property
    def is_here(self) -> bool:
        return (self.folder / "complete").exists()

    def fetch(self) -> None:
        """Install what is pinned, unless that was done.

        Raises
        ------
        subprocess.CalledProcessError
            If it could not be installed.
        FileNotFoundError
            If the tool is missing.
        """
        if self.is_here:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.tool == "pip":
            subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)
            install = [self.interpreter, "-m", "pip", "install", "--quiet", *self.pins]
        else:
            (self.folder / "package.json").write_text('{"type": "module"}')
            quiet = ("--no-audit", "--no-fund", "--loglevel=error")
            install = ["npm", "install", *quiet, "--prefix", str(self.folder), *self.pins]
        subprocess.run(install, check=True, stdout=sys.stderr)
        (self.folder / "complete").touch()
